// Processes of one run: c10d's store, its process groups, its Reducer of gradients, and batch normalisation over all ranks.
//
// Same conventions as bridge.cpp: nullptr, or a message allocated with malloc that the caller frees.

#define USE_C10D_GLOO 1
#ifdef WEINCE_NCCL
#define USE_C10D_NCCL 1
#endif

#include <ATen/ATen.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Logging.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#ifdef WEINCE_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "guarded.h"

using at::Tensor;
using std::chrono::milliseconds;

namespace {

using Keys = c10::intrusive_ptr<c10d::Store>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Reaches the connections, which ProcessGroupGloo keeps to its heirs; never made.
struct Heir : c10d::ProcessGroupGloo {
  static const auto& contexts(const c10d::ProcessGroupGloo& gloo) { return gloo.*&Heir::contexts_; }
};

// The connections of one rank to the others. Autograd nodes and the Reducer hold it beside its owner.
struct Wire : torch::CustomClassHolder {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> gloo;
  // Whether a collective has failed: then ranks are out of step, and nothing can follow. Gloo's threads share it; what they hold
  // of the wire itself they could be the last to let go, and a group's thread cannot end the group.
  std::shared_ptr<std::atomic<bool>> failed = std::make_shared<std::atomic<bool>>(false);
  c10::intrusive_ptr<c10d::Backend> backend(const at::Device& device) { return group->getBackend(device.type()); }

  // c10d numbers a group's collectives as they are issued, and writes those of all groups of the process down, without a lock.
  template <typename F>
  WorkPtr issue(F&& start) {
    static std::mutex issuing;
    std::lock_guard<std::mutex> lock(issuing);
    return start();
  }

  // Issues and waits; a failure on the way is remembered.
  template <typename F>
  void run(F&& start) {
    try {
      issue(start)->wait();
    } catch (...) {
      *failed = true;
      throw;
    }
  }

  void sum(Tensor& t) {
    std::vector<Tensor> list{t};
    run([&] { return backend(t.device())->allreduce(list); });
  }

  // `all` holds as many bytes as `mine` for each rank.
  void gather(const Tensor& mine, const Tensor& all) {
    // Gloo compares the shapes of parts.
    auto from = mine.view({-1}), to = all.view({-1});
    run([&] { return backend(mine.device())->_allgather_base(to, from); });
  }
};

// Its buckets stay as they were made: so the same step sums in the same order, whichever step a process began with.
struct Reducer : c10d::Reducer {
  template <typename... A>
  explicit Reducer(A&&... arguments) : c10d::Reducer(std::forward<A>(arguments)...) {
    has_rebuilt_bucket_ = true;
  }
};

using WirePtr = c10::intrusive_ptr<Wire>;

// Sums a bucket over the ranks. Where a hook is registered, the Reducer does not divide by their number.
struct SumHook : c10d::CommHookInterface {
  WirePtr wire;
  explicit SumHook(WirePtr w) : wire(std::move(w)) {}

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    auto& buffer = bucket.getBufferRef();
    std::vector<Tensor> list{buffer};
    auto future = wire->issue([&] { return wire->backend(buffer.device())->allreduce(list); })->getFuture();
    if (!buffer.is_cpu()) return future;
    // The flag is set before anybody who waits for the bucket goes on.
    return future->then(
        [failed = wire->failed](c10::ivalue::Future& done) {
          if (done.hasError()) *failed = true;
          return done.value();
        },
        future->elementType());
  }
  Tensor parseHookResult(const c10::IValue& result) override { return c10d::detail::parseCppCommHookResult(result); }
};

struct Gradients {
  WirePtr wire;
  std::unique_ptr<Reducer> reducer;
};

// Everything but the channels.
std::vector<int64_t> all_but_channels(const Tensor& x) {
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < x.dim(); d++) dims.push_back(d);
  return dims;
}

Tensor along_channels(const Tensor& values, const Tensor& x) {
  std::vector<int64_t> shape(x.dim(), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

at::ScalarType precise(const Tensor& x) { return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat; }

// Batch normalisation with the statistics of all ranks' rows. The gradients of weight and bias are those of this rank's rows.
struct SyncBatchNorm : torch::autograd::Function<SyncBatchNorm> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, Tensor running_mean, Tensor running_var, double momentum, double eps,
                        const WirePtr& wire) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const int64_t channels = x.size(1), values = channels ? x.numel() / channels : 0;
    auto wide = at::TensorOptions().dtype(at::kDouble).device(x.device());
    // Means and squared deviations, not sums of squares: nothing cancels. Combined over the ranks in float64.
    auto mine = at::zeros({2 * channels + 1}, wide);
    if (values > 0) {
      auto [variance, mean] = at::var_mean(x.to(precise(x)), all_but_channels(x), 0, false);
      mine.narrow(0, 0, channels).copy_(mean);
      mine.narrow(0, channels, channels).copy_(variance).mul_(static_cast<double>(values));
      mine.narrow(0, 2 * channels, 1).fill_(static_cast<double>(values));
    }
    auto all = at::empty({wire->group->getSize(), 2 * channels + 1}, wide);
    wire->gather(mine, all);
    auto means = all.narrow(1, 0, channels), squares = all.narrow(1, channels, channels);
    auto counts = all.narrow(1, 2 * channels, 1), count = counts.sum();
    // On CUDA the host does not wait to ask.
    if (x.is_cpu() && count.item<double>() < 2)
      throw std::runtime_error("batch normalisation over all ranks needs more than one value a channel");
    auto mean = means.mul(counts).sum(0).div_(count);
    auto square = squares.add(means.sub(mean).square_().mul_(counts)).sum(0);
    auto variance = square.div(count);
    running_mean.mul_(1 - momentum).add_(mean.to(running_mean.scalar_type()), momentum);
    running_var.mul_(1 - momentum)
        .add_(square.div(count.sub(1).clamp_min_(1)).to(running_var.scalar_type()), momentum);

    auto kind = weight.scalar_type();
    ctx->save_for_backward({x, weight, mean, variance.add(eps).rsqrt_(), count});
    ctx->saved_data["wire"] = c10::IValue::make_capsule(wire);
    return std::get<0>(
        at::native_batch_norm(x, weight, bias, mean.to(kind), variance.to(kind), false, momentum, eps));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list upstream) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3], &count = saved[4];
    auto wire = c10::static_intrusive_pointer_cast<Wire>(ctx->saved_data["wire"].toCapsule());
    auto kind = precise(x);
    const int64_t channels = x.size(1);
    auto dims = all_but_channels(x);
    auto slope = upstream[0].to(kind), centred = x.to(kind) - along_channels(mean.to(kind), x);
    auto sums = at::empty({2, channels}, mean.options());
    sums[0].copy_(slope.sum(dims));
    sums[1].copy_(slope.mul(centred).sum(dims));
    auto grad_bias = sums[0].clone().to(weight.scalar_type());
    auto grad_weight = sums[1].mul(inverse).to(weight.scalar_type());
    wire->sum(sums);
    sums.div_(count);
    auto scale = inverse.mul(weight);
    auto pull = sums[1].mul(inverse).mul_(inverse).mul_(scale).neg_();
    auto grad = centred.mul_(along_channels(pull.to(kind), x))
                    .addcmul_(slope, along_channels(scale.to(kind), x))
                    .sub_(along_channels(sums[0].mul(scale).to(kind), x))
                    .to(x.scalar_type());
    return {grad, grad_weight, grad_bias, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

std::vector<Tensor> list(Tensor* const* tensors, size_t n) {
  std::vector<Tensor> out;
  out.reserve(n);
  for (size_t i = 0; i < n; i++) out.push_back(*tensors[i]);
  return out;
}

// LibTorch writes no message of a lower level to stderr. TORCH_CPP_LOG_LEVEL wins, as in Python.
void log_from(int level) {
  if (std::getenv("TORCH_CPP_LOG_LEVEL")) {
    c10::initLogging();
  } else {
    FLAGS_caffe2_log_level = level;
  }
}

}  // namespace

extern "C" {

int weince_nccl() {
#ifdef WEINCE_NCCL
  return 1;
#else
  return 0;
#endif
}

// The store of a run at host:port, which is served here if `serves`; every key is under `prefix`.
char* weince_keys_open(const char* host, uint16_t port, int serves, int64_t timeout, const char* prefix, Keys** out) {
  return guarded([&] {
    // What fails here and in Gloo is thrown as well; c10d would add a stack trace for every question to a store that is gone.
    log_from(c10::GLOG_FATAL);
    c10d::TCPStoreOptions options;
    options.port = port;
    options.isServer = serves != 0;
    options.multiTenant = true;
    options.waitWorkers = false;
    options.timeout = milliseconds(timeout);
    auto tcp = c10::make_intrusive<c10d::TCPStore>(host, options);
    *out = new Keys(c10::make_intrusive<c10d::PrefixStore>(prefix, std::move(tcp)));
  });
}

// The same store by a connection of its own, so that it answers while the other one waits.
char* weince_keys_clone(Keys* keys, Keys** out) {
  return guarded([&] { *out = new Keys((*keys)->clone()); });
}

char* weince_keys_set(Keys* keys, const char* key, const char* value, size_t n) {
  return guarded([&] { (*keys)->set(key, std::vector<uint8_t>(value, value + n)); });
}

// Waits for the key.
char* weince_keys_get(Keys* keys, const char* key, char** out) {
  return guarded([&] {
    auto value = (*keys)->get(key);
    *out = strndup(reinterpret_cast<const char*>(value.data()), value.size());
  });
}

char* weince_keys_add(Keys* keys, const char* key, int64_t amount, int64_t* out) {
  return guarded([&] { *out = (*keys)->add(key, amount); });
}

char* weince_keys_has(Keys* keys, const char* key, int* out) {
  return guarded([&] { *out = (*keys)->check({key}); });
}

void weince_keys_free(Keys* keys) { delete keys; }

// Connects this rank with the others: by Gloo at `interface`, or else at `address`; and by NCCL if `cuda` is at least 0.
char* weince_wire_open(Keys* keys, int rank, int size, int cuda, const char* interface, const char* address,
                       int64_t timeout, Wire** out) {
  return guarded([&] {
    auto wire = c10::make_intrusive<Wire>();
    auto options = c10d::ProcessGroupGloo::Options::create(milliseconds(timeout));
    options->devices.push_back(interface ? c10d::ProcessGroupGloo::createDeviceForInterface(interface)
                                         : c10d::ProcessGroupGloo::createDeviceForHostname(address));
    Keys gloo_keys = c10::make_intrusive<c10d::PrefixStore>("gloo", *keys);
    wire->gloo = c10::make_intrusive<c10d::ProcessGroupGloo>(gloo_keys, rank, size, options);
    wire->group = c10::make_intrusive<c10d::ProcessGroup>(*keys, rank, size);
#ifdef WEINCE_NCCL
    if (cuda >= 0) wire->group->setBoundDeviceId(at::Device(at::kCUDA, cuda));
#endif
    wire->group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::GLOO, wire->gloo);
    wire->group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    if (cuda >= 0) {
#ifdef WEINCE_NCCL
      // A rank that dies in an NCCL collective is noticed by c10d's watchdog, which ends the process and says why in the log alone.
      log_from(c10::GLOG_ERROR);
      auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
      nccl_options->timeout = milliseconds(timeout);
      Keys nccl_keys = c10::make_intrusive<c10d::PrefixStore>("nccl", *keys);
      c10::intrusive_ptr<c10d::Backend> nccl =
          c10::make_intrusive<c10d::ProcessGroupNCCL>(nccl_keys, rank, size, nccl_options);
      wire->group->setBackend(at::kCUDA, c10d::ProcessGroup::BackendType::NCCL, nccl);
      wire->group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
#else
      throw std::runtime_error("built without NCCL");
#endif
    }
    *out = wire.release();
  });
}

// `all` is as large as `mine` times the number of ranks; both contiguous, of one type.
char* weince_wire_gather(Wire* wire, Tensor* mine, Tensor* all) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    wire->gather(*mine, *all);
  });
}

char* weince_wire_sum(Wire* wire, Tensor* tensor) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    auto whole = tensor->detach().contiguous();
    wire->sum(whole);
    if (!whole.is_alias_of(*tensor)) tensor->copy_(whole);
  });
}

// From rank 0, tensors of one kind in blocks of 25 MiB.
char* weince_wire_broadcast(Wire* wire, Tensor* const* tensors, size_t n) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    for (size_t from = 0, to = 0; from < n; from = to) {
      std::vector<Tensor> parts;
      size_t bytes = 0;
      for (; to < n && bytes < c10d::kDefaultBucketBytesCap; bytes += tensors[to++]->nbytes()) {
        const auto& t = *tensors[to];
        if (t.scalar_type() != tensors[from]->scalar_type() || t.device() != tensors[from]->device()) break;
        parts.push_back(t.detach().reshape({-1}));
      }
      std::vector<Tensor> block{at::cat(parts)};
      if (block[0].numel() > 0) wire->run([&] { return wire->backend(block[0].device())->broadcast(block); });
      int64_t at = 0;
      for (size_t i = from; i < to; at += tensors[i++]->numel())
        tensors[i]->detach().copy_(block[0].narrow(0, at, tensors[i]->numel()).view(tensors[i]->sizes()));
    }
  });
}

int weince_wire_failed(Wire* wire) { return *wire->failed; }

// Ends the connections, so that the other ranks stop waiting; afterwards no collective works.
char* weince_wire_close(Wire* wire) {
  return guarded([&] {
    for (const auto& context : Heir::contexts(*wire->gloo)) context->closeConnections();
  });
}

// After a failure the connections' threads may wait for what never comes: then they are left behind, not waited for.
char* weince_wire_free(Wire* wire) {
  return guarded([&] {
    auto owned = WirePtr::reclaim(wire);
    if (*owned->failed) {
      (void)c10::intrusive_ptr<c10d::ProcessGroup>(owned->group).release();
      (void)c10::intrusive_ptr<c10d::ProcessGroupGloo>(owned->gloo).release();
    }
  });
}

char* weince_sync_batch_norm(Wire* wire, Tensor* x, Tensor* weight, Tensor* bias, Tensor* running_mean,
                             Tensor* running_var, double momentum, double eps, Tensor** out) {
  return guarded([&] {
    *out = new Tensor(SyncBatchNorm::apply(*x, *weight, *bias, running_mean->detach(), running_var->detach(), momentum,
                                           eps, WirePtr::reclaim_copy(wire)));
  });
}

// Sums of gradients over the ranks, in buckets during the backward pass; all parameters get a gradient in each pass.
char* weince_gradients_new(Wire* wire, Tensor* const* params, const char* const* names, size_t n, Gradients** out) {
  return guarded([&] {
    auto parameters = list(params, n);
    std::unordered_map<size_t, std::string> named;
    for (size_t i = 0; i < n; i++) named.emplace(i, names[i]);
    // Gradients come about in the reverse order of the parameters; the first ones are on their way soon.
    std::vector<Tensor> reversed(parameters.rbegin(), parameters.rend());
    std::vector<int64_t> indices(n);
    for (size_t i = 0; i < n; i++) indices[i] = static_cast<int64_t>(n - 1 - i);
    const std::vector<size_t> sizes{c10d::kDefaultFirstBucketBytes, c10d::kDefaultBucketBytesCap};
    auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(reversed, sizes, {}, indices));
    auto made = std::make_unique<Gradients>();
    made->wire = WirePtr::reclaim_copy(wire);
    made->reducer = std::make_unique<Reducer>(
        parameters, std::move(buckets), wire->group, std::vector<bool>(n, false), c10d::kDefaultBucketBytesCap,
        /*find_unused_parameters=*/false, /*gradient_as_bucket_view=*/false, std::move(named),
        c10d::kDefaultFirstBucketBytes, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
        std::vector<int64_t>());
    made->reducer->register_comm_hook(std::make_unique<SumHook>(made->wire));
    *out = made.release();
  });
}

// The next backward pass reduces.
char* weince_gradients_arm(Gradients* gradients) {
  return guarded([&] { gradients->reducer->prepare_for_backward({}); });
}

// Whether the pass reduced everything; else the message says which parameters had no gradient.
char* weince_gradients_finish(Gradients* gradients) {
  return guarded([&] { gradients->reducer->check_finalized(); });
}

char* weince_gradients_free(Gradients* gradients) {
  return guarded([&] { delete gradients; });
}

}  // extern "C"

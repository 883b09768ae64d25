// What LibTorch offers and tch does not reach: gradient injection, fused optimizer kernels, mixed precision,
// generator states, times and memory of a CUDA device, versions.
//
// Every function returns nullptr, or a message allocated with malloc that the caller frees. No C++ exception crosses
// the boundary. A tensor comes in as tch's pointer (torch::Tensor*); one that goes out is owned by the caller.

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/Version.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/stack.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/version.h>

#include <malloc.h>

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "guarded.h"

using at::Tensor;

namespace {

std::vector<Tensor> list(Tensor* const* tensors, size_t n) {
  std::vector<Tensor> out;
  out.reserve(n);
  for (size_t i = 0; i < n; i++) out.push_back(*tensors[i]);
  return out;
}

std::optional<Tensor> optional(Tensor* tensor) {
  return tensor ? std::optional<Tensor>(*tensor) : std::nullopt;
}

// A scalar whose gradients with respect to the inputs are already known: backward scales and hands them on.
struct KnownGradient : torch::autograd::Function<KnownGradient> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& a, const Tensor& b, const Tensor& value,
                        const Tensor& grad_a, const Tensor& grad_b) {
    ctx->save_for_backward({grad_a, grad_b});
    return value.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list upstream) {
    auto saved = ctx->get_saved_variables();
    auto scaled = [&](const Tensor& g) { return g.mul(upstream[0].to(g.scalar_type())); };
    return {scaled(saved[0]), scaled(saved[1]), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

extern "C" {

char* weince_known_gradient(Tensor* a, Tensor* b, Tensor* value, Tensor* grad_a, Tensor* grad_b, Tensor** out) {
  return guarded([&] { *out = new Tensor(KnownGradient::apply(*a, *b, *value, *grad_a, *grad_b)); });
}

// `steps`: one float32 0-dim tensor a parameter, on its device; advanced here by one.
char* weince_fused_adam(int decoupled, Tensor* const* params, Tensor* const* grads, Tensor* const* exp_avgs,
                        Tensor* const* exp_avg_sqs, Tensor* const* steps, size_t n, double lr, double beta1,
                        double beta2, double weight_decay, double eps, Tensor* grad_scale, Tensor* found_inf) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    auto p = list(params, n), g = list(grads, n), m = list(exp_avgs, n), v = list(exp_avg_sqs, n), s = list(steps, n);
    at::_foreach_add_(s, 1);
    auto step = decoupled ? static_cast<void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                                                 at::TensorList, at::TensorList, double, double, double, double,
                                                 double, bool, bool, const std::optional<Tensor>&,
                                                 const std::optional<Tensor>&)>(at::_fused_adamw_)
                          : static_cast<void (*)(at::TensorList, at::TensorList, at::TensorList, at::TensorList,
                                                 at::TensorList, at::TensorList, double, double, double, double,
                                                 double, bool, bool, const std::optional<Tensor>&,
                                                 const std::optional<Tensor>&)>(at::_fused_adam_);
    step(p, g, m, v, {}, s, lr, beta1, beta2, weight_decay, eps, false, false, optional(grad_scale),
         optional(found_inf));
    // The kernel skips the update where found_inf is 1; the step counts go back with it, without asking the device.
    if (found_inf) at::_foreach_sub_(s, std::vector<Tensor>(n, *found_inf));
  });
}

char* weince_fused_sgd(Tensor* const* params, Tensor* const* grads, Tensor* const* momenta, size_t n,
                       double weight_decay, double momentum, double lr, double dampening, int nesterov, int first_step,
                       Tensor* grad_scale, Tensor* found_inf) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    auto p = list(params, n), g = list(grads, n);
    auto m = momentum != 0.0 ? list(momenta, n) : std::vector<Tensor>();
    at::_fused_sgd_(p, g, m, weight_decay, momentum, lr, dampening, nesterov != 0, false, first_step != 0,
                    optional(grad_scale), optional(found_inf));
  });
}

// The 2-norm over all elements of all tensors, 0-dim, on their device.
char* weince_total_norm(Tensor* const* tensors, size_t n, Tensor** out) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    *out = new Tensor(at::linalg_vector_norm(at::stack(at::_foreach_norm(list(tensors, n)))));
  });
}

// As zero_grad(set_to_none=True): memory is given back, and a parameter without gradient is left out of the next step.
char* weince_clear_gradients(Tensor* const* params, size_t n) {
  return guarded([&] {
    for (size_t i = 0; i < n; i++) params[i]->mutable_grad() = Tensor();
  });
}

struct AutocastState {
  int enabled, dtype, cache;
};

// From here on operations on `device` cast as autocast does; `before` receives what was so far. The cache of cast weights
// ends with the outermost region.
char* weince_autocast_enter(int device, int dtype, AutocastState* before) {
  return guarded([&] {
    auto d = static_cast<at::DeviceType>(device);
    *before = {at::autocast::is_autocast_enabled(d), static_cast<int>(at::autocast::get_autocast_dtype(d)),
               at::autocast::is_autocast_cache_enabled()};
    at::autocast::set_autocast_enabled(d, true);
    at::autocast::set_autocast_dtype(d, static_cast<at::ScalarType>(dtype));
    at::autocast::set_autocast_cache_enabled(true);
    at::autocast::increment_nesting();
  });
}

char* weince_autocast_leave(int device, const AutocastState* before) {
  return guarded([&] {
    auto d = static_cast<at::DeviceType>(device);
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(d, before->enabled);
    at::autocast::set_autocast_dtype(d, static_cast<at::ScalarType>(before->dtype));
    at::autocast::set_autocast_cache_enabled(before->cache);
  });
}

// Multiplies the gradients by `inv_scale`, in place; `found_inf` becomes 1 where one of them is not finite.
char* weince_unscale(Tensor* const* grads, size_t n, Tensor* inv_scale, Tensor* found_inf) {
  return guarded([&] {
    at::NoGradGuard no_grad;
    at::_amp_foreach_non_finite_check_and_unscale_(list(grads, n), *found_inf, *inv_scale);
  });
}

char* weince_allow_tf32(int allow) {
  return guarded([&] {
    at::globalContext().setAllowTF32CuBLAS(allow != 0);
    at::globalContext().setAllowTF32CuDNN(allow != 0);
  });
}

// The state of LibTorch's generator as Python's get_rng_state gives it; of a CUDA device if `cuda` is at least 0.
char* weince_generator_state(int cuda, Tensor** out) {
  return guarded([&] {
    auto generator = cuda < 0 ? at::detail::getDefaultCPUGenerator()
                              : at::globalContext().defaultGenerator(at::Device(at::kCUDA, cuda));
    std::lock_guard<std::mutex> lock(generator.mutex());
    *out = new Tensor(generator.get_state());
  });
}

// A mark in the work that the CUDA device has been given; its time is read by weince_event_elapsed.
char* weince_event_record(int cuda, c10::Event** out) {
  return guarded([&] {
    at::Device device(at::kCUDA, cuda);
    auto event = std::make_unique<c10::Event>(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    event->record(c10::impl::VirtualGuardImpl(at::kCUDA).getStream(device));
    *out = event.release();
  });
}

// Milliseconds from one mark to another, waiting until the device has passed both.
char* weince_event_elapsed(c10::Event* from, c10::Event* to, double* milliseconds) {
  return guarded([&] {
    from->synchronize();
    to->synchronize();
    *milliseconds = from->elapsedTime(*to);
  });
}

void weince_event_free(c10::Event* event) { delete event; }

// Bytes in tensors on the CUDA device: now, and at most since the start.
char* weince_device_memory(int cuda, int64_t* now, int64_t* peak) {
  return guarded([&] {
    auto stats = c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(static_cast<c10::DeviceIndex>(cuda));
    const auto& all = stats.allocated_bytes[static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE)];
    *now = all.current;
    *peak = all.peak;
  });
}

// Bytes that the C library's allocator has handed out; 0 where it does not tell.
size_t weince_allocated_bytes() {
#if defined(__GLIBC__)
#if __GLIBC_PREREQ(2, 33)
  const auto all = mallinfo2();
  return all.uordblks + all.hblkhd;
#endif
#endif
  return 0;
}

const char* weince_torch_version() { return TORCH_VERSION; }

char* weince_cpu_capability(char** out) {
  return guarded([&] { *out = strdup(at::get_cpu_capability().c_str()); });
}

}  // extern "C"

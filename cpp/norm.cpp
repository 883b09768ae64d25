// Batch normalisation on a CPU whose statistics are right to the last places of float32, whatever the layout.
//
// Conventions as in bridge.cpp. With channels last LibTorch's own adds up the rows of a whole batch one after the other in float32: at
// 256 images of 32x32 the standard deviation is wrong by 1e-5 of it. Here it does so for a few images at a time, and the rest is
// put together in float64.

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <vector>

#include "guarded.h"

using at::Tensor;

namespace {

// How many pieces are added up in float32, each by itself, unless they would be too small to be worth it.
constexpr int64_t PIECES = 16, FEWEST_ROWS = 1024;

struct BatchNorm : torch::autograd::Function<BatchNorm> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, Tensor running_mean, Tensor running_var, double momentum, double eps) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const int64_t images = x.size(0), channels = x.size(1), values = x.numel() / channels;
    auto rows = std::max(FEWEST_ROWS, (values + PIECES - 1) / PIECES);
    auto at_once = std::max<int64_t>(1, rows * images / values);
    // Whose kind says that half precision is to be summed in float32.
    auto none = at::zeros({channels}, weight.options());
    std::vector<Tensor> means, variances;
    std::vector<double> counts;
    for (int64_t start = 0; start < images; start += at_once) {
      auto piece = x.narrow(0, start, std::min(at_once, images - start));
      auto [mean, variance] = at::batch_norm_update_stats(piece, none, none, 0.0);
      means.push_back(mean);
      variances.push_back(variance);
      counts.push_back(static_cast<double>(piece.size(0)));
    }
    auto wide = [](const std::vector<Tensor>& of_pieces) { return at::stack(of_pieces).to(at::kDouble); };
    auto means_of = wide(means), share = at::tensor(counts, at::kDouble).div_(images).unsqueeze(1);
    auto mean = means_of.mul(share).sum(0);
    auto variance = wide(variances).add_(means_of.sub(mean).square_()).mul_(share).sum(0);
    running_mean.mul_(1 - momentum).add_(mean.to(running_mean.scalar_type()), momentum);
    auto unbiased = variance.mul(static_cast<double>(values) / static_cast<double>(values - 1));
    running_var.mul_(1 - momentum).add_(unbiased.to(running_var.scalar_type()), momentum);
    auto kind = weight.scalar_type();
    auto inverse = variance.add(eps).rsqrt_().to(kind);
    mean = mean.to(kind);
    ctx->save_for_backward({x, weight, mean, inverse});
    ctx->saved_data["eps"] = eps;
    return std::get<0>(at::native_batch_norm(x, weight, bias, mean, variance.to(kind), false, momentum, eps));
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list upstream) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    auto slope = upstream[0].contiguous(x.suggest_memory_format());
    auto [grad, grad_weight, grad_bias] = at::native_batch_norm_backward(
        slope, x, weight, mean, inverse, mean, inverse, true, ctx->saved_data["eps"].toDouble(), {true, true, true});
    return {grad, grad_weight, grad_bias, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

}  // namespace

extern "C" {

char* weince_batch_norm(Tensor* x, Tensor* weight, Tensor* bias, Tensor* running_mean, Tensor* running_var,
                        double momentum, double eps, Tensor** out) {
  return guarded([&] {
    *out = new Tensor(
        BatchNorm::apply(*x, *weight, *bias, running_mean->detach(), running_var->detach(), momentum, eps));
  });
}

}  // extern "C"

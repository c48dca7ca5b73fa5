#include <weft/dist_autograd/engine/internal/accumulate_gradient.h>

#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <utility>

namespace weft::dist_autograd {

bool owns_memory(const at::Tensor& gradient) {
  if (gradient.layout() != at::kStrided || !gradient.has_storage()) return true;
  const bool view = gradient.is_view();
  if (view && gradient._base().use_count() != 1) return false;
  return gradient.storage().use_count() <= (view ? 2U : 1U);
}

void accumulate_gradient(const at::Tensor& leaf, at::Tensor& sum, const at::Tensor& gradient,
                         std::size_t references) {
  torch::autograd::AccumulateGrad::accumulateGrad(leaf, sum, gradient, owns_memory(gradient) ? references : 0,
                                                  [&](at::Tensor&& next) { sum = std::move(next); });
}

}  // namespace weft::dist_autograd

#include <weft/parallel/pipeline/leaf_gradients.h>

#include <weft/dist_autograd/engine/internal/accumulate_gradient.h>

#include <ATen/core/grad_mode.h>

#include <utility>

namespace weft::pipeline {

void LeafGradients::accumulate(const at::Tensor& leaf, at::Tensor gradient, std::size_t references) {
  Sum& sum = sums_[leaf.unsafeGetTensorImpl()];
  sum.leaf = leaf;
  dist_autograd::accumulate_gradient(leaf, sum.gradient, gradient, references);
}

void LeafGradients::publish() {
  const at::NoGradGuard no_grad;
  for (auto& [impl, sum] : sums_)
    dist_autograd::accumulate_gradient(sum.leaf, sum.leaf.mutable_grad(), sum.gradient, 1);
  sums_.clear();
}

void LeafGradients::publish(dist_autograd::GradientSink& to) {
  const at::NoGradGuard no_grad;
  for (auto& [impl, sum] : std::exchange(sums_, {})) to.accumulate(sum.leaf, std::move(sum.gradient), 1);
}

at::Tensor LeafGradients::take(const at::Tensor& leaf) {
  const auto sum = sums_.extract(leaf.unsafeGetTensorImpl());
  return sum.empty() ? at::Tensor() : std::move(sum.mapped().gradient);
}

}  // namespace weft::pipeline

// LeafGradients: the gradients of a stage's parameters, summed over the micro-batches of a step.
//
// The gradients are not in `.grad`, so that a failed step changes nothing, and stages on several threads can
// share a parameter. Not thread-safe.
#pragma once

#include <weft/dist_autograd/engine/gradient_sink.h>

#include <ATen/core/Tensor.h>

#include <map>

namespace weft::pipeline {

class WEFT_EXPORT LeafGradients final : public dist_autograd::GradientSink {
 public:
  void accumulate(const at::Tensor& leaf, at::Tensor gradient, std::size_t references) override;
  // Adds the gradients to `.grad`, or to another sink, and clears them.
  void publish();
  void publish(dist_autograd::GradientSink& to);
  // Removes and returns the sum of a leaf; undefined if the leaf has no gradient.
  at::Tensor take(const at::Tensor& leaf);
  void clear() { sums_.clear(); }

 private:
  struct Sum {
    at::Tensor leaf, gradient;
  };
  std::map<c10::TensorImpl*, Sum> sums_;
};

}  // namespace weft::pipeline

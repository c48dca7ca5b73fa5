// GradientSink: receives the gradients of leaves, for example to store them in a pass instead of in `.grad`.
//
// The owner of a NodeExecutor implements a GradientSink, which must outlive the executor. The executor calls
// accumulate() once for each leaf, on the thread that runs the nodes, with the grad mode of the executor's
// options. An exception of accumulate() fails the executor.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace weft::dist_autograd {

// A leaf tensor and its gradient, of the same shape.
struct LeafGradient {
  at::Tensor leaf, gradient;
};

class WEFT_EXPORT GradientSink {
 public:
  virtual ~GradientSink();

  // Adds `gradient`, which is defined and has `leaf`'s shape, dense or sparse, to the stored gradient of
  // `leaf`. The gradient may be shared: if the forward added two leaves, both receive the same tensor, and a
  // hook may have kept the tensor. An implementation that later changes the gradient in place must copy it
  // first, unless nothing else refers to it. references: the number of references to `gradient` that the
  // executor holds, including the argument; 0: copy it.
  virtual void accumulate(const at::Tensor& leaf, at::Tensor gradient, std::size_t references) = 0;
};

}  // namespace weft::dist_autograd

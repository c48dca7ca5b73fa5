// accumulate_gradient: for implementations of GradientSink.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace weft::dist_autograd {

// Whether no other tensor uses the gradient's memory. A view keeps its base alive, which then counts as part
// of the view.
WEFT_EXPORT bool owns_memory(const at::Tensor& gradient);

// Adds `gradient` to `sum`, of the gradients of `leaf`, as LibTorch adds to `.grad`: sparse or dense. An
// undefined sum takes the gradient's memory if nothing else uses it. LibTorch looks at the gradient's own
// references only: views of one gradient for two leaves would share memory. references: as for
// GradientSink::accumulate().
WEFT_EXPORT void accumulate_gradient(const at::Tensor& leaf, at::Tensor& sum, const at::Tensor& gradient,
                                     std::size_t references);

}  // namespace weft::dist_autograd

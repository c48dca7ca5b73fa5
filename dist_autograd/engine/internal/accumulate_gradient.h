// accumulate_gradient: for implementations of GradientSink.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <cstddef>

namespace weft::dist_autograd {

// Whether no other tensor uses the gradient's memory. If the gradient is a view, its base counts as part of
// it, unless something else refers to the base.
WEFT_EXPORT bool owns_memory(const at::Tensor& gradient);

// Adds `gradient` to `sum`, the sum of the gradients of `leaf`, as LibTorch adds to `.grad`. Both may be
// sparse or dense. If the sum is undefined and owns_memory(gradient), the sum uses the gradient's memory.
// (LibTorch checks only the references to the gradient itself. With its check, the sums of two leaves could
// share memory, if their gradients are views of one tensor.) references: see GradientSink::accumulate().
WEFT_EXPORT void accumulate_gradient(const at::Tensor& leaf, at::Tensor& sum, const at::Tensor& gradient,
                                     std::size_t references);

}  // namespace weft::dist_autograd

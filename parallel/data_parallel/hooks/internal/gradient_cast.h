// Conversion of gradients to the narrower floating-point types that CastHook and AllReduceOptimizer send.
//
// Complex numbers count as pairs of real numbers, in a last dimension of size 2. Thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

namespace weft::data_parallel {

// Throws invalid_argument, with the name of the caller, unless the type is float16, bfloat16 or float32.
WEFT_EXPORT void expect_cast_type(const char* caller, at::ScalarType dtype);
// A view of the tensor as real numbers.
WEFT_EXPORT at::Tensor as_real(const at::Tensor& tensor);
// The values in `dtype`, in new memory; the tensor itself if it has this type.
WEFT_EXPORT at::Tensor narrowed(const at::Tensor& gradient, at::ScalarType dtype);
// The reverse: writes the narrow values into the gradient, unless they are the same tensor.
WEFT_EXPORT void widen(const at::Tensor& narrow, const at::Tensor& gradient);

}  // namespace weft::data_parallel

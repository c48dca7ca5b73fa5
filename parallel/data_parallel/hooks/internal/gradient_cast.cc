#include <weft/parallel/data_parallel/hooks/internal/gradient_cast.h>

#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>

#include <string>

namespace weft::data_parallel {

void expect_cast_type(const char* caller, at::ScalarType dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16 && dtype != at::kFloat)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, std::string(caller) + ": " + c10::toString(dtype) +
                                                           ", expected float16, bfloat16 or float32");
}

at::Tensor as_real(const at::Tensor& tensor) {
  return tensor.is_complex() ? at::view_as_real(tensor) : tensor;
}

at::Tensor narrowed(const at::Tensor& gradient, at::ScalarType dtype) {
  return gradient.scalar_type() == dtype ? gradient : as_real(gradient).to(dtype);
}

void widen(const at::Tensor& narrow, const at::Tensor& gradient) {
  if (!narrow.is_same(gradient)) as_real(gradient).copy_(narrow.view(as_real(gradient).sizes()));
}

}  // namespace weft::data_parallel

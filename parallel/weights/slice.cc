#include <weft/parallel/weights/slice.h>

#include <weft/parallel/weights/tensor_form.h>
#include <weft/rpc/core/error.h>

namespace weft::weights {

at::Tensor Slice::of(const at::Tensor& tensor, const std::string& what) const {
  at::Tensor part = flattened ? tensor.reshape({-1}) : tensor;
  for (const auto& [dim, begin, end] : extents) {
    if (dim < 0 || dim >= part.dim() || begin < 0 || end < begin || end > part.size(dim))
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       what + ": the slice has the indices " + std::to_string(begin) + " to " +
                           std::to_string(end) + " of dimension " + std::to_string(dim) +
                           ", expected a range within " + to_text({part.scalar_type(), part.sizes().vec()}));
    part = part.narrow(dim, begin, end - begin);
  }
  return part;
}

}  // namespace weft::weights

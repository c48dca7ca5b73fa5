// TensorMemory: copies of tensors, in memory that later copies reuse. Undefined tensors stay undefined. Not
// thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace weft::elastic::detail {

// Whether both have the same sizes, strides, dtype and device: a copy from one to the other then allocates no
// memory.
bool same_form(const at::Tensor& a, const at::Tensor& b);
// Returns a copy of `from`: in the memory of `memory` if both have the same form, otherwise in new memory.
WEFT_EXPORT at::Tensor copy_into(at::Tensor memory, const at::Tensor& from);

class WEFT_EXPORT TensorMemory {
 public:
  void store(const std::vector<at::Tensor>& live);
  // Writes the copies into the tensors. Their number and forms must equal those that were stored.
  void load(const std::vector<at::Tensor>& live) const;

 private:
  std::vector<at::Tensor> copies_;
};

}  // namespace weft::elastic::detail

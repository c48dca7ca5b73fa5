// TensorForm: what a file says about a tensor, without its elements. Pure data.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::weights {

struct WEFT_EXPORT TensorForm {
  at::ScalarType dtype = at::kFloat;
  std::vector<std::int64_t> sizes;
  // The place of the elements in their storage, in elements. Empty strides: C order.
  std::vector<std::int64_t> strides = {};
  std::int64_t offset = 0;
  // Tensors with the same storage share memory: tied parameters, or parts of one tensor. Empty: not shared.
  std::string storage = {};

  // The number of elements, and of their bytes.
  std::int64_t numel() const;
  std::uint64_t bytes() const { return static_cast<std::uint64_t>(numel()) * c10::elementSize(dtype); }
  // Whether both are the same elements of one storage.
  bool is_same_as(const TensorForm& other) const;
};

// Tensors by name.
using TensorForms = std::map<std::string, TensorForm>;

// The form of each tensor. Tensors of one process that share memory get the same `storage`. invalid_argument,
// which names the tensor: it is not defined or not dense.
WEFT_EXPORT TensorForms forms_of(const std::map<std::string, at::Tensor>& tensors);

// A dtype and a shape as text: "float32 [2, 3]".
WEFT_EXPORT std::string to_text(const TensorForm& form);

}  // namespace weft::weights

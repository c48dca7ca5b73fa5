// Tensors without memory, and the memory of a parameter, which is replaced. Its TensorImpl and StorageImpl
// are kept, so that optimizers, views and tensors that autograd has saved use the parameter's present memory.
// Version counters do not change.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace weft::weights {

// A tensor of these sizes and strides, without memory.
at::Tensor without_memory(const at::TensorOptions& options, at::IntArrayRef sizes, at::IntArrayRef strides,
                          const std::string& reason);
// Gives the parameter a separate storage without memory, for contiguous elements of this type, device and
// sizes. A use of its elements then fails with an error that contains `reason`.
void detach_memory(const at::Tensor& parameter, const at::TensorOptions& options, at::IntArrayRef sizes,
                   const std::string& reason);
// Makes the memory of `elements` the parameter's memory. Both must have the same number and type of elements,
// and the parameter must have a separate storage.
void set_memory(const at::Tensor& parameter, const at::Tensor& elements);
bool has_memory(const at::Tensor& parameter);  // true without elements
// Removes the memory; `reason` as above.
void remove_memory(const at::Tensor& parameter, const std::string& reason);

}  // namespace weft::weights

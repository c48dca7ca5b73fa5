// Exchanges the memory of a parameter. Its TensorImpl and StorageImpl stay, so that optimizers, views, and
// what autograd has saved see the memory that the parameter has at the time; version counters do not change.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

namespace weft::sharded {

// Gives the parameter a storage that no other tensor has, without memory and with contiguous elements of this
// type. A use of its elements is an error from then on that says `reason`.
void detach_memory(const at::Tensor& parameter, at::ScalarType dtype, const std::string& reason);
// The parameter's elements are `elements` from now on, as many and of its type; it has a storage to itself.
void set_memory(const at::Tensor& parameter, const at::Tensor& elements);
bool has_memory(const at::Tensor& parameter);
// Takes the memory away again.
void remove_memory(const at::Tensor& parameter, const std::string& reason);

}  // namespace weft::sharded

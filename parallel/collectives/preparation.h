// Preparation: a call on tensors of the host's memory becomes a Collective: where elements are read and
// written without a copy, which are copied first, and what is written back at the end.
//
// For the group's own sources. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/group_core.h>
#include <weft/parallel/collectives/operation/collective_call.h>

namespace weft::collectives {

using Tensors = std::vector<at::Tensor>;

// Throws what check() throws, and unsupported for a reduction that the dtype does not have.
Collective collective_of(const GroupCore& group, const CollectiveCall& call);

void expect_rank(const GroupCore& group, int rank);
// The elements of a tensor, one after the other: its own memory where it is contiguous.
at::Tensor flat(const at::Tensor& tensor);
std::string type_of(const at::Tensor& tensor);   // "float32[4]"
rpc::Buffer bytes_of(const at::Tensor& memory);  // contiguous
inline std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// In memory of that backend, where it has some; backend may be null.
at::Tensor empty_in(Backend* backend, at::IntArrayRef sizes, const at::TensorOptions& options);

// Memory for results: that of the tensors where they are one contiguous piece; else separate memory, which
// write_back() copies into them.
class Output {
 public:
  // backend: allocates separate memory; may be null.
  explicit Output(std::span<const at::Tensor> tensors, Backend* backend = nullptr);
  static Output copied(std::span<const at::Tensor> tensors);  // always with separate memory

  const at::Tensor& memory() const { return memory_; }
  bool is_copied() const { return !tensors_.empty(); }
  void gather() const;  // copies what the tensors hold now, where the memory is its own
  void write_back() const;

 private:
  Output() = default;
  void allocate(std::span<const at::Tensor> tensors, Backend* backend);

  Tensors tensors_;  // to be written back
  at::Tensor memory_;
};

}  // namespace weft::collectives

// Preparation: converts a call on tensors in host memory to a Collective. It determines which elements are
// read and written without a copy, which are copied first, and which are written back at the end.
//
// For the group's own sources. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/internal/group/backend.h>
#include <weft/parallel/collectives/internal/group/group_member.h>
#include <weft/parallel/collectives/operation/internal/collective_call.h>

namespace weft::collectives {

// An owned list. Parameters are spans, which refer to the caller's tensors.
using Tensors = std::vector<at::Tensor>;

// Converts a call for that backend of the group. Throws the errors of check(), and unsupported if the dtype
// does not support the reduction.
Collective collective_of(const GroupMember& group, Backend& backend, const CollectiveCall& call);

// Throws invalid_argument unless `rank` is a rank of the group.
void expect_rank(const GroupMember& group, int rank);
// The elements of a tensor, one after the other: its own memory if it is contiguous.
at::Tensor flat(const at::Tensor& tensor);

// "float32[2, 2]"; with relaxed checks "float32[4]".
std::string type_of(const at::Tensor& tensor, Checks checks = Checks::strict);
rpc::Buffer bytes_of(const at::Tensor& memory);  // contiguous
// The address of the tensor's first element.
inline std::byte* data_of(const at::Tensor& tensor) { return static_cast<std::byte*>(tensor.data_ptr()); }

// Allocates a tensor in memory of the backend or, if `backend` is null or has no memory, in ordinary memory.
at::Tensor empty_in(Backend* backend, at::IntArrayRef sizes, const at::TensorOptions& options);

// Memory for results: the memory of the tensors if they are one contiguous piece; otherwise separate memory,
// which write_back() copies into the tensors.
class Output {
 public:
  // backend: allocates separate memory; may be null.
  explicit Output(std::span<const at::Tensor> tensors, Backend* backend = nullptr);
  // Always with separate memory. type: of its elements, to and from which they are converted.
  static Output copied(std::span<const at::Tensor> tensors, at::ScalarType type);

  // One dimension, contiguous. is_copied(): it is separate memory.
  const at::Tensor& memory() const { return memory_; }
  bool is_copied() const { return !tensors_.empty(); }
  void gather() const;      // copies the present values of the tensors, if the memory is separate
  void write_back() const;  // copies the memory into the tensors, if it is separate

 private:
  Output() = default;
  void allocate(std::span<const at::Tensor> tensors, at::ScalarType type, Backend* backend);

  Tensors tensors_;  // to be written back
  at::Tensor memory_;
};

}  // namespace weft::collectives

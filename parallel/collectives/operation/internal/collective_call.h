// CollectiveCall: the operation and the arguments of one collective, as the program of a rank calls it. The
// functions below use the operation's description for the checks, the signature and the layout.
//
// A value that refers to the caller's tensors: valid until the caller's function returns. check() is the only
// check of arguments that all backends share; a backend adds its own limits (types of reductions; for NCCL
// contiguous tensors of one device). Pure functions; thread-safe.
#pragma once

#include <weft/parallel/collectives/operation/group_options.h>
#include <weft/parallel/collectives/operation/internal/description.h>
#include <weft/parallel/collectives/operation/internal/signature.h>
#include <weft/rpc/core/site.h>

#include <ATen/core/Tensor.h>

#include <chrono>
#include <optional>
#include <span>
#include <string>

namespace weft::collectives {

struct CollectiveCall {
  Operation operation = Operation::barrier;
  std::span<const at::Tensor> outputs = {};  // all_reduce, reduce, broadcast: inputs and outputs
  std::span<const at::Tensor> inputs = {};
  std::optional<int> root = {};
  std::optional<ReduceOp> reduction = {};
  std::optional<std::chrono::nanoseconds> timeout = {};  // none: the group's
  rpc::Site site = {};
  Checks checks = Checks::strict;  // of the group

  // The tensor that determines the dtype and the device of the collective; null for a barrier.
  const at::Tensor* first() const {
    return !inputs.empty() ? &inputs.front() : !outputs.empty() ? &outputs.front() : nullptr;
  }
};

// Throws invalid_argument and unsupported, with the operation, the actual and the expected argument.
WEFT_EXPORT void check(const CollectiveCall& call, int rank, int ranks);
// For calls that passed check(). The signature has no device.
WEFT_EXPORT Signature signature_of(const CollectiveCall& call);
WEFT_EXPORT Layout layout_of(const CollectiveCall& call, int ranks);
// The tensors to be copied because an input and an output overlap otherwise than in place: those that are
// parts of the others. `nothing` with strict checks, with which check() refuses such a call.
enum class Copies : std::uint8_t { nothing, inputs, outputs };
WEFT_EXPORT Copies copies_of(const CollectiveCall& call, int rank);

// What the ranks compare of the shape of a tensor: with relaxed checks, only its number of elements.
WEFT_EXPORT std::vector<std::int64_t> compared_shape(const at::Tensor& tensor, Checks checks);

// For a message or a collective: throws unless the tensor is dense, and in the memory of the host or of a
// GPU.
WEFT_EXPORT void check_tensor(std::string_view operation, const at::Tensor& tensor);

[[noreturn]] WEFT_EXPORT void refuse(const std::string& why);  // throws invalid_argument

// Throws invalid_argument if several elements of the tensor share memory, because it is expanded.
WEFT_EXPORT void check_separate(std::string_view operation, const at::Tensor& tensor);

// Increases the version counters of tensors that an operation writes, as LibTorch's operators do: if a graph
// has saved such a tensor, its backward reports the change. Call it before the operation starts.
WEFT_EXPORT void note_writes(std::span<const at::Tensor> outputs);

// Tensors of an accelerator use NCCL. PrivateUse1: the program that registers such a device also selects the
// library that acts as NCCL there (nccl/devices.h).
inline bool is_on_device(const at::Tensor& tensor) {
  return tensor.defined() && (tensor.is_cuda() || tensor.is_privateuseone());
}
// The number of elements of a tensor.
inline std::size_t count_of(const at::Tensor& tensor) { return static_cast<std::size_t>(tensor.numel()); }

}  // namespace weft::collectives

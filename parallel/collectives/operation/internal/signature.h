// Signature: the properties of a collective on which all ranks of the group must agree.
//
// Groups compare signatures before data moves: signatures that differ have different hashes, and their texts
// show the difference. The source location of the call is not part of the signature. A value.
#pragma once

#include <weft/parallel/collectives/operation/reduce_op.h>
#include <weft/parallel/collectives/plan/internal/layout.h>

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace weft::collectives {

// "float32[4, 8]"; "?" for a size that is -1.
WEFT_EXPORT std::string tensor_text(c10::ScalarType dtype, std::span<const std::int64_t> shape);

// The dtype and shape of a tensor, as tensor_text() writes them.
struct TensorType {
  c10::ScalarType dtype = c10::ScalarType::Undefined;
  std::vector<std::int64_t> shape;
};
// Parses a text that tensor_text() has written. nullopt: the text does not describe a tensor of `bytes`
// bytes.
WEFT_EXPORT std::optional<TensorType> tensor_type_of(std::string_view text, std::size_t bytes);

struct WEFT_EXPORT Signature {
  Operation operation = Operation::barrier;
  // The shapes of one rank's tensors, in their order. {-1}: the shape may differ between ranks.
  std::vector<std::vector<std::int64_t>> shapes;

  c10::ScalarType dtype = c10::ScalarType::Undefined;  // of all tensors; Undefined: a barrier
  std::optional<int> root;                             // none: the operation has no root
  std::optional<ReduceOp::Kind> reduction;             // none: the operation does not reduce
  std::optional<c10::DeviceType> device;               // none: host memory
  // The rank refuses its call, or has learned that the ranks disagree. No signature of a valid call is equal.
  bool refused = false;

  // The hash of all fields. Equal signatures have equal hashes in all processes.
  std::uint64_t hash() const;

  std::string text() const;  // "all_reduce(sum, float32[4, 8])"
};

}  // namespace weft::collectives

#include <weft/parallel/collectives/signature.h>
#include <weft/rpc/core/fixed_string.h>
#include <weft/rpc/tensor/dtype.h>

namespace weft::collectives {

std::string_view name_of(Operation operation) {
  switch (operation) {
    case Operation::all_reduce:
      return "all_reduce";
    case Operation::reduce:
      return "reduce";
    case Operation::broadcast:
      return "broadcast";
    case Operation::all_gather:
      return "all_gather";
    case Operation::all_gather_v:
      return "all_gather_v";
    case Operation::reduce_scatter:
      return "reduce_scatter";
    case Operation::reduce_scatter_v:
      return "reduce_scatter_v";
    case Operation::all_to_all:
      return "all_to_all";
    case Operation::all_to_all_v:
      return "all_to_all_v";
    case Operation::gather:
      return "gather";
    case Operation::scatter:
      return "scatter";
    case Operation::barrier:
      return "barrier";
  }
  return "?";
}

std::string tensor_text(c10::ScalarType dtype, std::span<const std::int64_t> shape) {
  std::string text(tensor::dtype_name(dtype));
  const char* before = "[";
  for (const std::int64_t size : shape) {
    text += before + (size < 0 ? std::string("?") : std::to_string(size));
    before = ", ";
  }
  return text + (shape.empty() ? "[]" : "]");
}

std::string Signature::text() const {
  std::string text(name_of(operation));
  std::string separator = "(";
  const auto add = [&](std::string_view part) {
    text += separator;
    text += part;
    separator = ", ";
  };
  if (reduction) add(ReduceOp{*reduction}.name());
  for (const auto& shape : shapes) add(tensor_text(dtype, shape));
  if (root) add("root " + std::to_string(*root));
  return text + (separator == "(" ? "()" : ")");
}

// The text says all that there is to agree on.
std::uint64_t Signature::hash() const { return rpc::name_hash(text()); }

}  // namespace weft::collectives

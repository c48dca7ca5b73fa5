#include <weft/parallel/collectives/signature.h>
#include <weft/rpc/tensor/dtype.h>

namespace weft::collectives {

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
  if (device) add(c10::DeviceTypeName(*device, /*lower_case=*/true));
  return text + (separator == "(" ? "()" : ")");
}

// Of all that the text says, without writing it.
std::uint64_t Signature::hash() const {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E37'79B9'7F4A'7C15;  // by the golden ratio: every bit of what is mixed counts
    hash ^= hash >> 32;
  };
  add(static_cast<std::uint64_t>(operation) + 1);
  add(static_cast<std::uint64_t>(dtype));
  add(reduction ? static_cast<std::uint64_t>(*reduction) + 1 : 0);
  add(root ? static_cast<std::uint64_t>(*root) + 2 : 0);  // -1, no rank, is not the same as no root
  add(device ? static_cast<std::uint64_t>(*device) + 1 : 0);
  for (const auto& shape : shapes) {
    add(shape.size());
    for (const std::int64_t size : shape) add(static_cast<std::uint64_t>(size));
  }
  return hash;
}

}  // namespace weft::collectives

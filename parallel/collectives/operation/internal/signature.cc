#include <weft/parallel/collectives/operation/internal/signature.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/tensor/dtype.h>

#include <algorithm>
#include <charconv>

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

std::optional<TensorType> tensor_type_of(std::string_view text, std::size_t bytes) {
  const std::size_t open = text.find('[');
  if (open == text.npos || text.back() != ']') return std::nullopt;
  TensorType type;
  try {
    type.dtype = tensor::dtype_from_name(text.substr(0, open));
  } catch (const rpc::Error&) {
    return std::nullopt;
  }
  const char *at = text.data() + open + 1, *const end = text.data() + text.size() - 1;
  // Strides count an empty dimension as one element: they must not overflow either.
  std::int64_t count = 1, extent = static_cast<std::int64_t>(c10::elementSize(type.dtype));
  while (at != end) {
    if (!type.shape.empty()) {
      if (end - at < 2 || at[0] != ',' || at[1] != ' ') return std::nullopt;
      at += 2;
    }
    std::int64_t size = 0;
    const auto [next, error] = std::from_chars(at, end, size);
    if (error != std::errc() || size < 0 ||
        __builtin_mul_overflow(extent, std::max<std::int64_t>(size, 1), &extent))
      return std::nullopt;
    if (size == 0) count = 0;
    type.shape.push_back(size);
    at = next;
  }
  if (static_cast<std::size_t>(count * extent) != bytes) return std::nullopt;
  return type;
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
  if (refused) add("refused");
  return text + (separator == "(" ? "()" : ")");
}

// Hashes all parts of the text without creating the text.
std::uint64_t Signature::hash() const {
  std::uint64_t hash = 0;
  const auto add = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E37'79B9'7F4A'7C15;  // by the golden ratio: every bit of the input counts
    hash ^= hash >> 32;
  };
  add(static_cast<std::uint64_t>(operation) + 1);
  add(static_cast<std::uint64_t>(dtype));
  add(reduction ? static_cast<std::uint64_t>(*reduction) + 1 : 0);
  add(root ? static_cast<std::uint64_t>(*root) + 1 : 0);
  add(device ? static_cast<std::uint64_t>(*device) + 1 : 0);
  add(refused ? 1 : 0);
  for (const auto& shape : shapes) {
    add(shape.size());
    for (const std::int64_t size : shape) add(static_cast<std::uint64_t>(size));
  }
  return hash;
}

}  // namespace weft::collectives

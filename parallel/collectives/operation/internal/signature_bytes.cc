#include <weft/parallel/collectives/operation/internal/signature_bytes.h>

#include <cstring>

namespace weft::collectives {
namespace {

constexpr std::int64_t nothing = -1;

}  // namespace

SignatureBytes::SignatureBytes(const Signature& signature) {
  words_ = {static_cast<std::int64_t>(signature.operation),
            static_cast<std::int64_t>(signature.dtype),
            signature.root ? *signature.root : nothing,
            signature.reduction ? static_cast<std::int64_t>(*signature.reduction) : nothing,
            signature.device ? static_cast<std::int64_t>(*signature.device) : nothing,
            signature.refused ? 1 : 0};
  for (const auto& shape : signature.shapes) {
    words_.push_back(static_cast<std::int64_t>(shape.size()));
    words_.append(shape.begin(), shape.end());
  }
}

std::string SignatureBytes::text(std::string_view bytes) {
  std::vector<std::int64_t> words(bytes.size() / sizeof(std::int64_t));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(std::int64_t));
  Signature signature{.operation = static_cast<Operation>(words[0]),
                      .shapes = {},
                      .dtype = static_cast<c10::ScalarType>(words[1])};
  if (words[2] != nothing) signature.root = static_cast<int>(words[2]);
  if (words[3] != nothing) signature.reduction = static_cast<ReduceOp::Kind>(words[3]);
  if (words[4] != nothing) signature.device = static_cast<c10::DeviceType>(words[4]);
  signature.refused = words[5] != 0;
  for (auto at = words.begin() + 6; at != words.end();) {
    const auto end = at + 1 + *at;
    signature.shapes.emplace_back(at + 1, end);
    at = end;
  }
  return signature.text();
}

}  // namespace weft::collectives

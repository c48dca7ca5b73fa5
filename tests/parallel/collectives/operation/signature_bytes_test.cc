#include <weft/parallel/collectives/operation/internal/signature_bytes.h>

#include <gtest/gtest.h>

namespace weft::collectives::testing {
namespace signature_bytes_test {

TEST(SignatureBytes, ContainTheSignature) {
  const Signature sums{.operation = Operation::all_reduce,
                       .shapes = {{4, 8}},
                       .dtype = c10::ScalarType::Float,
                       .reduction = ReduceOp::Kind::avg};
  const Signature several{
      .operation = Operation::all_gather_v,
      .shapes = {{}, {-1, 5}, {0}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}},
      .dtype = c10::ScalarType::Half,
      .root = 0};
  for (const Signature& signature : {sums, several, Signature{}}) {
    const SignatureBytes bytes(signature);
    EXPECT_EQ(SignatureBytes::text(bytes.view()), signature.text());
    // A recorder's copy of the bytes need not be aligned.
    const std::string moved = "x" + std::string(bytes.view());
    EXPECT_EQ(SignatureBytes::text(std::string_view(moved).substr(1)), signature.text());
  }
}

}  // namespace signature_bytes_test
}  // namespace weft::collectives::testing

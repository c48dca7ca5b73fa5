#include <weft/parallel/collectives/operation/internal/signature.h>

#include <gtest/gtest.h>

namespace weft::collectives::testing {
namespace signature_test {

const Signature sums{.operation = Operation::all_reduce,
                     .shapes = {{4, 8}},
                     .dtype = c10::ScalarType::Float,
                     .reduction = ReduceOp::Kind::sum};

TEST(Signature, ReadsLikeTheCall) {
  EXPECT_EQ(sums.text(), "all_reduce(sum, float32[4, 8])");
  EXPECT_EQ(Signature{.operation = Operation::barrier}.text(), "barrier()");
  const Signature several{
      .operation = Operation::broadcast, .shapes = {{}, {2}}, .dtype = c10::ScalarType::Half, .root = 3};
  EXPECT_EQ(several.text(), "broadcast(float16[], float16[2], root 3)");
  const Signature any{
      .operation = Operation::all_gather_v, .shapes = {{-1, 5}}, .dtype = c10::ScalarType::Long};
  EXPECT_EQ(any.text(), "all_gather_v(int64[?, 5])");
}

TEST(Signature, HasAnotherHashIfAnyFieldDiffers) {
  EXPECT_EQ(sums.hash(), Signature(sums).hash());
  std::vector<Signature> others(7, sums);
  others[0].operation = Operation::reduce_scatter;
  others[1].shapes = {{8, 4}};
  others[2].shapes = {{4, 8}, {4, 8}};
  others[3].dtype = c10::ScalarType::Double;
  others[4].root = 0;
  others[5].reduction = ReduceOp::Kind::avg;
  others[6].refused = true;
  for (const Signature& other : others) EXPECT_NE(other.hash(), sums.hash()) << other.text();
}

TEST(TensorType, IsReadFromItsText) {
  for (const std::vector<std::int64_t>& shape :
       std::vector<std::vector<std::int64_t>>{{}, {0}, {4, 8}, {2, 0, 3}})
    for (const c10::ScalarType dtype : {c10::ScalarType::Half, c10::ScalarType::Long}) {
      std::size_t bytes = c10::elementSize(dtype);
      for (const std::int64_t size : shape) bytes *= static_cast<std::size_t>(size);
      const std::string text = tensor_text(dtype, shape);
      const auto type = tensor_type_of(text, bytes);
      ASSERT_TRUE(type) << text;
      EXPECT_EQ(type->dtype, dtype);
      EXPECT_EQ(type->shape, shape);
      EXPECT_FALSE(tensor_type_of(text, bytes + 1)) << text;
    }
}

TEST(TensorType, IsNotParsedFromOtherTexts) {
  for (const char* text :
       {"", "float32", "[4]", "float32[4", "float32[4,1]", "float32[4, ]", "float32[, 4]", "float32[-4]",
        "float32[?]", "float99[4]", "object float32[4]", "float32[4] on cuda",
        "float32[4611686018427387904, 4]", "float32[0, 4611686018427387904, 4]"})
    for (const std::size_t bytes : {0, 16}) EXPECT_FALSE(tensor_type_of(text, bytes)) << text;
}

}  // namespace signature_test
}  // namespace weft::collectives::testing

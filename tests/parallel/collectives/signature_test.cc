#include <weft/parallel/collectives/signature.h>

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

TEST(Signature, HasAnotherHashWhereAnythingDiffers) {
  EXPECT_EQ(sums.hash(), Signature(sums).hash());
  std::vector<Signature> others(7, sums);
  others[0].operation = Operation::reduce_scatter;
  others[1].shapes = {{8, 4}};
  others[2].shapes = {{4, 8}, {4, 8}};
  others[3].dtype = c10::ScalarType::Double;
  others[4].root = 0;
  others[5].reduction = ReduceOp::Kind::avg;
  others[6].root = -1;  // no rank: a refused last level (levels.h)
  for (const Signature& other : others) EXPECT_NE(other.hash(), sums.hash()) << other.text();
}

}  // namespace signature_test
}  // namespace weft::collectives::testing

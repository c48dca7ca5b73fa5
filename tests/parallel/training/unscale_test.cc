#include <weft/parallel/training/unscale.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::training::unscale_test {
namespace {

using namespace data_parallel::testing;

class Unscale : public OfRanks<3> {};

TEST_F(Unscale, DividesTheGradientsOfAnOptimizer) {
  on_ranks(groups, [&](const Group& group) {
    Net net(1, at::kFloat);
    torch::optim::SGD optimizer(net.parameters(), 0.1);
    EXPECT_TRUE(unscale_gradients(group, optimizer, 4));  // without gradients
    const at::Tensor x = Batch::of_step(0, 1).data.to(at::kFloat);
    net.forward(x).sum().backward();
    std::vector<at::Tensor> expected;
    for (const at::Tensor& parameter : net.parameters()) expected.push_back(parameter.grad().clone());
    net.zero_grad();
    (4 * net.forward(x).sum()).backward();
    EXPECT_TRUE(unscale_gradients(group, optimizer, 4));
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : net.parameters()) gradients.push_back(parameter.grad());
    expect_close(gradients, expected, 1e-6);
  });
}

TEST_F(Unscale, AnInfiniteGradientOfOneRankIsReportedToAll) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::nan("")})
    on_ranks(groups, [&](const Group& group) {
      at::Tensor one = at::ones({3}), other = at::ones({2, 2}, at::kDouble);
      if (group.rank() == 1) other[1][0] = bad;
      EXPECT_FALSE(unscale_gradients(group, {one, at::Tensor(), other}, 2));
    });
}

TEST_F(Unscale, ReadsTheValuesOfSparseGradients) {
  on_ranks(groups, [&](const Group& group) {
    const at::Tensor sparse = at::eye(3).to_sparse();
    EXPECT_TRUE(unscale_gradients(group, {sparse}, 2));
    expect_close({sparse.to_dense()}, {at::eye(3) / 2});
    sparse._values()[0] = group.rank() == 2 ? std::numeric_limits<float>::infinity() : 1;
    EXPECT_FALSE(unscale_gradients(group, {sparse}, 2));
  });
}

}  // namespace
}  // namespace weft::training::unscale_test

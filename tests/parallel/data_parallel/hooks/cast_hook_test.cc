#include <weft/parallel/data_parallel/hooks/cast_hook.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::cast_hook_test {
namespace {

using namespace testing;

// In one process: each rank's gradients rounded, their average in float32, rounded again.
TEST(CastHook, EqualsTheSameRoundingInOneProcess) {
  constexpr int ranks = 3;
  Company company(ranks, Backend::memory);
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    std::vector<at::Tensor> expected;
    for (int rank = 0; rank < ranks; ++rank) {
      Net net(1, at::kFloat);
      net.forward(at::full({2, 5}, rank + 1.0)).sum().backward();
      const auto parameters = net.parameters();
      expected.resize(parameters.size());
      for (std::size_t i = 0; i < parameters.size(); ++i) {
        const at::Tensor rounded = parameters[i].grad().to(dtype).to(at::kFloat);
        expected[i] = rank == 0 ? rounded : expected[i] + rounded;
      }
    }
    for (at::Tensor& sum : expected) sum = (sum / ranks).to(dtype).to(at::kFloat);
    on_ranks(company.groups(), [&](const Group& group) {
      auto net = std::make_shared<Net>(1, at::kFloat);
      DistributedDataParallel ddp{group, net, Options{.bucket_bytes = {200}}};
      ddp.set_hook(std::make_shared<CastHook>(dtype));
      for (int i = 0; i < 3; ++i) {
        net->zero_grad();
        ddp.forward(at::full({2, 5}, group.rank() + 1.0)).sum().backward();
        const auto parameters = net->parameters();
        for (std::size_t j = 0; j < parameters.size(); ++j)
          EXPECT_TRUE(at::equal(parameters[j].grad(), expected[j])) << dtype << " " << j;
      }
    });
  }
}

TEST(CastHook, RefusesOtherTypes) {
  EXPECT_EQ(test::kind_of([] { CastHook(at::kDouble); }), ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::data_parallel::cast_hook_test

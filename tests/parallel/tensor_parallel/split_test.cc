#include <weft/parallel/tensor_parallel/split.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::split_test {
namespace {

using namespace testing;

class SplitTensors : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(Ranks, SplitTensors, up_to_four());

TEST_P(SplitTensors, PartsOfAllRanksAreTheWhole) {
  const at::Tensor whole = numbers({13, 6}, 1);
  std::vector<at::Tensor> parts;
  for (const Group& group : groups) parts.push_back(Split{group, 0, 13}.part_of(whole));
  EXPECT_TRUE(at::equal(at::cat(parts), whole));
  EXPECT_LE(parts.front().size(0) - parts.back().size(0), 1);
  EXPECT_GE(parts.back().size(0), 1);
}

TEST_P(SplitTensors, EachRankHasItsPartOfEveryBlock) {
  const at::Tensor whole = numbers({4, 36}, 1);
  for (const Group& group : groups) {
    std::vector<at::Tensor> expected;
    for (const at::Tensor& block : whole.chunk(3, 1)) expected.push_back(own_chunk(group, block, 1));
    EXPECT_TRUE(at::equal((Split{group, 1, 36, 3}.part_of(whole)), at::cat(expected, 1)));
  }
}

TEST_P(SplitTensors, ASizeThatDoesNotDivideIsRefused) {
  EXPECT_EQ(divide(groups[0], 12, "heads"), 12 / ranks);
  if (ranks == 1) return;
  test::expect_error([&] { divide(groups[0], 13, "heads"); }, ErrorKind::invalid_argument,
                     {"heads: 13", "expected a multiple of"});
}

struct Part : SplitModule {
  Part(const Group& group, const at::Tensor& whole) {
    own = register_split("own", whole, {group, 0, whole.size(0)});
    same = register_parameter("same", at::ones({2}));
  }
  at::Tensor own, same;
};

TEST_P(SplitTensors, PlacementsNameEachParameterOnce) {
  struct Model : torch::nn::Module {
    Model(const Group& group, const at::Tensor& whole) {
      part = register_module("part", std::make_shared<Part>(group, whole));
      register_parameter("tied", part->own);
      linear = register_module("linear", torch::nn::Linear(2, 2));
    }
    std::shared_ptr<Part> part;
    torch::nn::Linear linear{nullptr};
  };
  const Model model(groups.back(), numbers({5, 2}, 1));
  std::vector<std::string> names;
  for (const Placement& each : placements(model)) {
    names.push_back(each.name + (each.splits.empty() ? "" : " split"));
    EXPECT_TRUE(each.tensor.requires_grad());
  }
  EXPECT_EQ(names, (std::vector<std::string>{"tied split", "part.same", "linear.weight", "linear.bias"}));
}

}  // namespace
}  // namespace weft::tensor_parallel::split_test

#include <weft/parallel/tensor_parallel/ring_attention.h>
#include <weft/parallel/training/autocast.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::ring_attention_test {
namespace {

using namespace testing;

constexpr std::int64_t batch = 2, heads = 3, sequence = 12, features = 4;

struct Inputs {
  at::Tensor query, key, value;
  explicit Inputs(double scale = 1, std::int64_t of_values = features)
      : query((numbers({batch, heads, sequence, features}, 1) * scale).requires_grad_()),
        key((numbers({batch, heads, sequence, features}, 2) * scale).requires_grad_()),
        value(numbers({batch, heads, sequence, of_values}, 3).requires_grad_()) {}
  Inputs(const Inputs& whole, const Group& group)
      : query(own_chunk(group, whole.query, 2).requires_grad_()),
        key(own_chunk(group, whole.key, 2).requires_grad_()),
        value(own_chunk(group, whole.value, 2).requires_grad_()) {}
};

class Rings : public OnRanks {
 protected:
  void expect_equal(const Inputs& whole, const RingAttentionOptions& options) {
    const at::Tensor expected = at::scaled_dot_product_attention(whole.query, whole.key, whole.value, {}, 0,
                                                                 options.causal, options.scale);
    const at::Tensor weights = numbers(expected.sizes(), 4);
    (expected * weights).sum().backward();
    on_ranks(groups, [&](const Group& group) {
      const Inputs own(whole, group);
      const RingAttention attention(group, options);
      const at::Tensor output = attention(own.query, own.key, own.value);
      (output * own_chunk(group, weights, 2)).sum().backward();
      expect_close({output.detach(), own.query.grad(), own.key.grad(), own.value.grad()},
                   {own_chunk(group, expected, 2), own_chunk(group, whole.query.grad(), 2),
                    own_chunk(group, whole.key.grad(), 2), own_chunk(group, whole.value.grad(), 2)});
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Rings, up_to_four());

TEST_P(Rings, EqualAttentionOverTheWholeSequence) {
  for (const bool causal : {false, true})
    for (const std::optional<double> scale : {std::optional<double>(), std::optional<double>(0.3)})
      expect_equal(Inputs(), {.causal = causal, .scale = scale});
}

TEST_P(Rings, ValuesMayHaveOtherFeatures) { expect_equal(Inputs(1, 7), {.causal = true}); }

// Scores of some thousands, whose exponentials overflow a double.
TEST_P(Rings, ScoresMayBeLarge) { expect_equal(Inputs(50), {.causal = true}); }

TEST_P(Rings, ANodeExecutorHasTheGradientsOfBackward) {
  const Inputs whole;
  on_ranks(groups, [&](const Group& group) {
    const Inputs own(whole, group);
    const RingAttention attention(group, {.causal = true});
    expect_same_in_node_executor([&] { return attention(own.query, own.key, own.value).square().sum(); },
                                 {own.query, own.key, own.value});
  });
}

TEST_P(Rings, NarrowTypesAreMergedInFloat32) {
  const Inputs whole;
  const at::Tensor expected =
      at::scaled_dot_product_attention(whole.query, whole.key, whole.value, {}, 0, true);
  on_ranks(groups, [&](const Group& group) {
    const auto mine = [&](const at::Tensor& tensor) {
      return own_chunk(group, tensor, 2).to(at::kBFloat16).requires_grad_();
    };
    const at::Tensor query = mine(whole.query);
    const at::Tensor output =
        RingAttention(group, {.causal = true})(query, mine(whole.key), mine(whole.value));
    EXPECT_EQ(output.scalar_type(), at::kBFloat16);
    expect_close({output.detach().to(at::kDouble)}, {own_chunk(group, expected, 2)}, 0.05);
    output.sum().backward();
    EXPECT_EQ(query.grad().scalar_type(), at::kBFloat16);
  });
}

TEST_P(Rings, AutocastDoesNotChangeTheResult) {
  const Inputs whole;
  on_ranks(groups, [&](const Group& group) {
    const auto mine = [&](const at::Tensor& tensor) {
      return own_chunk(group, tensor, 2).to(at::kFloat).requires_grad_();
    };
    const auto run = [&](bool narrow) {
      const at::Tensor query = mine(whole.query), key = mine(whole.key), value = mine(whole.value);
      at::Tensor output;
      {
        std::optional<training::Autocast> autocast;
        if (narrow) autocast.emplace(at::kCPU, at::kBFloat16);
        output = RingAttention(group, {.causal = true})(query, key, value);
      }
      output.square().sum().backward();
      return std::vector<at::Tensor>{output.detach(), query.grad(), key.grad(), value.grad()};
    };
    expect_close(run(true), run(false), 1e-6);
  });
}

TEST_P(Rings, ShapesThatDoNotAgreeAreRefused) {
  expect_refused(groups, ErrorKind::invalid_argument, {"RingAttention", "Double 2 3 12 4", "Double 2 3 12 5"},
                 [&](const Group& group) {
                   const at::Tensor query = numbers({2, 3, 12, 4}, 1);
                   (void)RingAttention(group)(query, numbers({2, 3, 12, 5}, 1), query);
                 });
}

using TwoRings = data_parallel::testing::OfRanks<2>;

TEST_F(TwoRings, RanksThatDifferAreRefused) {
  expect_refused(groups, ErrorKind::invalid_argument, {"causal=0", "causal=1"},
                 [&](const Group& group) { RingAttention(group, {.causal = group.rank() == 1}); });
}

// Rank 0 detects the difference in its second step.
TEST(ThreeRings, PartsThatDifferFailTheForwardOnAllRanks) {
  on_ranks(3, Backend::memory, [&](const Group& group) {
    const at::Tensor part = numbers({1, 1, group.rank() == 1 ? 5 : 4, 2}, 1);
    const RingAttention attention(group);
    const auto error = test::error_of([&] { (void)attention(part, part, part); });
    ASSERT_TRUE(error);
    EXPECT_TRUE(error->kind() == ErrorKind::invalid_argument || error->kind() == ErrorKind::aborted)
        << error->what();
  });
}

// Rank 0 computes its first step only when rank 1 is in its second step, for which it needs the keys of rank
// 0.
TEST_F(TwoRings, TheNextKeysAreInFlightWhileTheCurrentOnesAreUsed) {
  for (const bool backward : {false, true}) {
    std::promise<void> in_second;
    auto second = in_second.get_future();
    bool overlapped = false;
    on_ranks(groups, [&](const Group& group) {
      const at::Tensor part = numbers({1, 1, 4, 2}, 1).requires_grad_();
      const RingAttention attention(group);
      const auto forward = [&] { return attention(part, part, part).sum(); };
      const at::Tensor output = backward ? forward() : at::Tensor();
      const int differences = 2;  // of a first step, in forward and in backward
      const auto in_step = [&](int step, std::function<void()> f) {
        const BeforeOperator before("aten::sub", 1 + step * differences, std::move(f));
        backward ? output.backward() : (void)forward();
      };
      if (group.rank() == 0) {
        in_step(0, [&] { overlapped = is_set(second); });
      } else {
        in_step(1, [&] { in_second.set_value(); });
      }
    });
    EXPECT_TRUE(overlapped) << (backward ? "backward" : "forward");
  }
}

TEST_F(TwoRings, AnAbortOfOneRankFailsTheBackwardOfTheOther) {
  expect_refused(groups, ErrorKind::aborted, {abort_reason}, [&](const Group& group) {
    const at::Tensor part = numbers({1, 1, 4, 2}, 1).requires_grad_();
    const at::Tensor loss = RingAttention(group)(part, part, part).sum();
    if (group.rank() == 1) abort_and_leave(group);
    loss.backward();
  });
}

}  // namespace
}  // namespace weft::tensor_parallel::ring_attention_test

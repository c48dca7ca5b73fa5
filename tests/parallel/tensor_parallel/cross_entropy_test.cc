#include <weft/parallel/tensor_parallel/cross_entropy.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::cross_entropy_test {
namespace {

using namespace testing;
namespace F = torch::nn::functional;

constexpr std::int64_t vocabulary = 13;

at::Tensor columns_of(const Group& group, const at::Tensor& logits) {
  return Split{group, logits.dim() - 1, vocabulary}.part_of(logits.detach());
}

class CrossEntropies : public OnRanks {
 protected:
  const at::Tensor targets = at::tensor({3, 0, 12, 5, -100, 7, 3, 11}, at::kLong);
  at::Tensor logits(double scale = 1) const { return numbers({8, vocabulary}, 4) * scale; }
};
INSTANTIATE_TEST_SUITE_P(Ranks, CrossEntropies, up_to_four());

TEST_P(CrossEntropies, EqualThoseOfTheWholeLogits) {
  for (const double smoothing : {0.0, 0.1, 1.0})
    for (const std::int64_t ignored : {std::int64_t{-100}, std::int64_t{3}})
      for (const auto reduction : {at::Reduction::None, at::Reduction::Mean, at::Reduction::Sum}) {
        const at::Tensor used = ignored == -100 ? targets : targets.clamp_min(0);
        F::CrossEntropyFuncOptions options;
        options.label_smoothing(smoothing).ignore_index(ignored);
        if (reduction == at::Reduction::None) options.reduction(torch::kNone);
        if (reduction == at::Reduction::Sum) options.reduction(torch::kSum);
        const at::Tensor whole = logits().requires_grad_();
        const at::Tensor expected = F::cross_entropy(whole, used, options);
        const at::Tensor weights = numbers(expected.sizes(), 6);
        (expected * weights).sum().backward();
        on_ranks(groups, [&](const Group& group) {
          const at::Tensor own = columns_of(group, whole).requires_grad_();
          const at::Tensor loss = vocabulary_parallel_cross_entropy(
              group, own, used, vocabulary,
              {.label_smoothing = smoothing, .ignore_index = ignored, .reduction = reduction});
          (loss * weights).sum().backward();
          expect_close({loss.detach(), own.grad()}, {expected.detach(), columns_of(group, whole.grad())});
        });
      }
}

TEST_P(CrossEntropies, LogitsMayBeLarge) {
  const at::Tensor whole = logits(1e4);
  on_ranks(groups, [&](const Group& group) {
    const at::Tensor loss =
        vocabulary_parallel_cross_entropy(group, columns_of(group, whole), targets, vocabulary);
    EXPECT_TRUE(at::isfinite(loss).item<bool>());
    expect_close({loss}, {F::cross_entropy(whole, targets)});
  });
}

TEST_P(CrossEntropies, NarrowLogitsAreComputedInFloat32) {
  const at::Tensor whole = logits().to(at::kBFloat16);
  on_ranks(groups, [&](const Group& group) {
    const at::Tensor own = columns_of(group, whole).requires_grad_();
    const at::Tensor loss = vocabulary_parallel_cross_entropy(group, own, targets, vocabulary,
                                                              {.reduction = at::Reduction::None});
    loss.sum().backward();
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_EQ(own.grad().scalar_type(), at::kBFloat16);
    F::CrossEntropyFuncOptions options;
    options.reduction(torch::kNone);
    expect_close({loss.detach()}, {F::cross_entropy(whole.to(at::kFloat), targets, options)}, 1e-5);
  });
}

TEST_P(CrossEntropies, ANodeExecutorHasTheGradientsOfBackward) {
  on_ranks(groups, [&](const Group& group) {
    const at::Tensor own = columns_of(group, logits()).requires_grad_();
    expect_same_in_node_executor(
        [&] { return vocabulary_parallel_cross_entropy(group, own, targets, vocabulary); }, {own});
  });
}

TEST_P(CrossEntropies, ATargetOutsideOfTheVocabularyIsRefusedOnAllRanks) {
  const auto run = [&](const Group& group, const at::Tensor& used) {
    vocabulary_parallel_cross_entropy(group, columns_of(group, logits()), used, vocabulary);
  };
  at::Tensor bad = targets.clone();
  bad[5] = vocabulary;
  expect_refused(groups, ErrorKind::invalid_argument, {"targets: element 5 is 13 on rank 0", "from 0 to 12"},
                 [&](const Group& group) { run(group, bad); });
  const int last = ranks - 1;
  expect_refused(groups, ErrorKind::invalid_argument,
                 {"targets: element 5 is 13 on rank " + std::to_string(last)},
                 [&](const Group& group) { run(group, group.rank() == last ? bad : targets); });
}

TEST_P(CrossEntropies, WrongShapesAndOptionsAreRefused) {
  const auto refused = [&](const std::string& word, const at::Tensor& own, const at::Tensor& used,
                           double smoothing = 0) {
    expect_refused(groups, ErrorKind::invalid_argument, {"vocabulary_parallel_cross_entropy", word},
                   [&](const Group& group) {
                     vocabulary_parallel_cross_entropy(group, own, used, 100, {.label_smoothing = smoothing});
                   });
  };
  refused("the logits have 7 columns", numbers({8, 7}, 1), targets);
  if (ranks != 4) return;
  refused("the targets are Long [8], expected Long [7]", numbers({7, 25}, 1), targets);
  refused("the targets are Int", numbers({8, 25}, 1), targets.to(at::kInt));
  refused("label_smoothing is 1.5", numbers({8, 25}, 1), targets, 1.5);
}

}  // namespace
}  // namespace weft::tensor_parallel::cross_entropy_test

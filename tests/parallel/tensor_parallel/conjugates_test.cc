#include <weft/parallel/tensor_parallel/conjugates.h>

#include "tests/parallel/tensor_parallel/ranks.h"

namespace weft::tensor_parallel::conjugates_test {
namespace {

using namespace testing;

class Conjugates : public OnRanks {
 protected:
  // The gradient of `f` at x, for a given gradient of its output.
  template <class F>
  static std::pair<at::Tensor, at::Tensor> both(const at::Tensor& x, const at::Tensor& gradient, F f) {
    const at::Tensor input = x.clone().requires_grad_();
    const at::Tensor output = f(input);
    return {output, torch::autograd::grad({output}, {input}, {gradient})[0]};
  }
  at::Tensor of(int rank) const { return numbers({12, 12}, static_cast<std::uint64_t>(rank + 1)); }
  at::Tensor sum() const {
    at::Tensor all = of(0);
    for (int rank = 1; rank < ranks; ++rank) all = all + of(rank);
    return all;
  }
  at::Tensor joined(std::int64_t dim) const {
    std::vector<at::Tensor> all;
    for (int rank = 0; rank < ranks; ++rank) all.push_back(of(rank));
    return at::cat(all, dim);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Conjugates, up_to_four());

TEST_P(Conjugates, CopyIsTheIdentityAndSumsGradients) {
  on_ranks(groups, [&](const Group& group) {
    const at::Tensor x = numbers({12, 12}, 9);
    const auto [output, gradient] =
        both(x, of(group.rank()), [&](const at::Tensor& in) { return copy_to_ranks(group, in); });
    expect_close({output, gradient}, {x, sum()});
  });
}

TEST_P(Conjugates, ReduceSumsAndLeavesGradients) {
  on_ranks(groups, [&](const Group& group) {
    const at::Tensor same = numbers({12, 12}, 9);
    const auto [output, gradient] =
        both(of(group.rank()), same, [&](const at::Tensor& in) { return reduce_from_ranks(group, in); });
    expect_close({output, gradient}, {sum(), same});
  });
}

TEST_P(Conjugates, SplitTakesAPartAndJoinsGradients) {
  for (const std::int64_t dim : {0, -1})
    on_ranks(groups, [&](const Group& group) {
      const at::Tensor x = numbers({12 * ranks, 12 * ranks}, 9),
                       gradient = numbers({12 * ranks, 12 * ranks}, 8);
      const auto [output, of_input] = both(x, own_chunk(group, gradient, dim), [&](const at::Tensor& in) {
        return split_to_ranks(group, in, dim);
      });
      expect_close({output, of_input}, {own_chunk(group, x, dim), gradient});
    });
}

TEST_P(Conjugates, GatherJoinsPartsAndTakesAPartOfGradients) {
  for (const std::int64_t dim : {0, -1})
    on_ranks(groups, [&](const Group& group) {
      const at::Tensor gradient = numbers(joined(dim).sizes(), 8);
      const auto [output, of_input] = both(of(group.rank()), gradient, [&](const at::Tensor& in) {
        return gather_from_ranks(group, in, dim);
      });
      expect_close({output, of_input}, {joined(dim), own_chunk(group, gradient, dim)});
    });
}

TEST_P(Conjugates, GatherOfASequenceScattersTheSumOfGradients) {
  for (const std::int64_t dim : {0, 1})
    on_ranks(groups, [&](const Group& group) {
      at::Tensor gradients = at::zeros_like(joined(dim));
      for (int rank = 0; rank < ranks; ++rank) gradients = gradients + numbers(gradients.sizes(), 40 + rank);
      const auto [output, of_input] =
          both(of(group.rank()), numbers(gradients.sizes(), 40 + group.rank()),
               [&](const at::Tensor& in) { return gather_sequence(group, in, dim); });
      expect_close({output, of_input}, {joined(dim), own_chunk(group, gradients, dim)});
    });
}

TEST_P(Conjugates, ScatterOfASequenceGathersGradients) {
  for (const std::int64_t dim : {0, 1})
    on_ranks(groups, [&](const Group& group) {
      std::vector<at::Tensor> gradients;
      const auto shape = own_chunk(group, sum(), dim).sizes().vec();
      for (int rank = 0; rank < ranks; ++rank) gradients.push_back(numbers(shape, 40 + rank));
      const auto [output, of_input] =
          both(of(group.rank()), gradients[static_cast<std::size_t>(group.rank())],
               [&](const at::Tensor& in) { return scatter_sequence(group, in, dim); });
      expect_close({output, of_input}, {own_chunk(group, sum(), dim), at::cat(gradients, dim)});
    });
}

TEST_P(Conjugates, ASizeThatDoesNotDivideIsRefused) {
  if (ranks == 1) return;
  expect_refused(groups, ErrorKind::invalid_argument, {"multiple of"},
                 [&](const Group& group) { split_to_ranks(group, numbers({13}, 1), 0); });
  expect_refused(groups, ErrorKind::invalid_argument, {"multiple of"},
                 [&](const Group& group) { scatter_sequence(group, numbers({13}, 1), 0); });
}

}  // namespace
}  // namespace weft::tensor_parallel::conjugates_test

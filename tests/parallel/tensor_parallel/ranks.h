// What the tests of tensor parallel layers have in common: ranks that are threads, and the comparison of a
// split module with a whole one.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <torch/torch.h>

#include <string>
#include <vector>

#include "tests/dist_autograd/engine_support.h"
#include "tests/parallel/data_parallel/ranks.h"

namespace weft::tensor_parallel::testing {

using collectives::Group;
using collectives::ReduceOp;
using collectives::testing::Backend;
using collectives::testing::Company;
using data_parallel::testing::expect_close;
using data_parallel::testing::on_ranks;
using dist_autograd::testing::numbers;
using rpc::ErrorKind;
using test::error_of;

inline at::Generator generator(std::uint64_t seed) { return at::detail::createCPUGenerator(seed); }

// 1, 2, 3 and 4 ranks.
class OnRanks : public ::testing::TestWithParam<int> {
 protected:
  const int ranks = GetParam();
  Company company{ranks, Backend::memory};
  std::vector<Group> groups = company.groups();
};
inline auto up_to_four() { return ::testing::Values(1, 2, 3, 4); }

inline at::Tensor own_chunk(const Group& group, const at::Tensor& whole, std::int64_t dim) {
  return whole.detach().chunk(group.size(), dim)[static_cast<std::size_t>(group.rank())].clone();
}

// f() fails on every rank, with this kind and these words.
template <class F>
void expect_refused(const std::vector<Group>& groups, ErrorKind kind, const std::vector<std::string>& words,
                    F f) {
  on_ranks(groups, [&](const Group& group) {
    const auto error = error_of([&] { f(group); });
    ASSERT_TRUE(error) << "rank " << group.rank();
    EXPECT_EQ(error->kind(), kind) << error->what();
    for (const std::string& word : words)
      EXPECT_NE(std::string(error->what()).find(word), std::string::npos)
          << "rank " << group.rank() << ": '" << word << "' in: " << error->what();
  });
}

// Values and gradients of this rank's parameters are the parts of the whole module's, by name.
inline void expect_parts(const torch::nn::Module& split, const torch::nn::Module& whole,
                         double tolerance = 1e-10) {
  const auto expected = whole.named_parameters();
  const auto actual = placements(split);
  ASSERT_EQ(actual.size(), expected.size());
  for (const Placement& each : actual) {
    at::Tensor value = expected[each.name].detach(), gradient = expected[each.name].grad();
    for (const Split& part : each.splits) {
      value = part.part_of(value);
      if (gradient.defined()) gradient = part.part_of(gradient);
    }
    EXPECT_TRUE(at::allclose(each.tensor.detach(), value, tolerance, tolerance)) << each.name;
    ASSERT_EQ(each.tensor.grad().defined(), gradient.defined()) << each.name;
    if (gradient.defined()) {
      EXPECT_TRUE(at::allclose(each.tensor.grad(), gradient, tolerance, tolerance))
          << each.name << "\n"
          << each.tensor.grad() << "\n"
          << gradient;
    }
  }
}

}  // namespace weft::tensor_parallel::testing

#include <weft/parallel/data_parallel/broadcast_state.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::broadcast_state_test {
namespace {

using namespace testing;

TEST(BroadcastParameters, GivesThoseOfTheRoot) {
  Company company(3, Backend::memory);
  on_ranks(company.groups(), [&](const Group& group) {
    Net net(static_cast<std::uint64_t>(10 + group.rank()));
    broadcast_parameters(group, net, 1);
    expect_close(values_of(net), values_of(Net(11)), 0);
    torch::nn::BatchNorm1d norm(2);
    norm->running_mean.fill_(group.rank());
    broadcast_parameters(group, *norm, 2);
    EXPECT_TRUE(at::equal(norm->running_mean, at::full({2}, 2.0F)));
    // Named tensors, of several dtypes and with strides.
    torch::OrderedDict<std::string, at::Tensor> tensors;
    tensors.insert("counts", at::full({2}, group.rank(), at::kLong));
    tensors.insert("transposed", at::full({2, 3}, group.rank(), at::kFloat).t());
    broadcast_parameters(group, tensors, 2);
    EXPECT_TRUE(at::equal(tensors["counts"], at::full({2}, 2, at::kLong)));
    EXPECT_TRUE(at::equal(tensors["transposed"], at::full({3, 2}, 2, at::kFloat)));
  });
}

TEST(BroadcastParameters, NamesTheFirstDifference) {
  Company company(2, Backend::memory);
  on_ranks(company.groups(), [&](const Group& group) {
    torch::OrderedDict<std::string, at::Tensor> tensors;
    tensors.insert("a", at::ones({2}));
    tensors.insert(group.rank() == 0 ? "b" : "c", at::ones({2}));
    const auto error = error_of([&] { broadcast_parameters(group, tensors, 0); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::failed_precondition);
    EXPECT_STREQ(error->what(), "broadcast_parameters: rank 0 has b, rank 1 has c");
  });
}

}  // namespace
}  // namespace weft::data_parallel::broadcast_state_test

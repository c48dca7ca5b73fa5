#include <weft/parallel/training/broadcast_state.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::training::broadcast_state_test {
namespace {

using namespace data_parallel::testing;

TEST(BroadcastParameters, GivesAllRanksTheRootsParameters) {
  on_ranks(3, Backend::memory, [&](const Group& group) {
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
  on_ranks(2, Backend::memory, [&](const Group& group) {
    torch::OrderedDict<std::string, at::Tensor> tensors;
    tensors.insert("a", at::ones({2}));
    tensors.insert(group.rank() == 0 ? "b" : "c", at::ones({2}));
    const auto error = error_of([&] { broadcast_parameters(group, tensors, 0); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::failed_precondition);
    EXPECT_STREQ(error->what(),
                 "broadcast_parameters: rank 0 has b Float[2] on cpu, rank 1 has c Float[2] on cpu, expected "
                 "the same names, dtypes and shapes on all ranks");
  });
}

TEST(BroadcastParameters, RefusesOtherShapesAndDtypesOnAllRanks) {
  Company company(3, Backend::memory);
  const auto groups = company.groups();
  const auto kinds = [&](const std::function<at::Tensor(int)>& tensor_of, bool by_name) {
    on_ranks(groups, [&](const Group& group) {
      const at::Tensor tensor = tensor_of(group.rank()), before = tensor.clone();
      const auto kind = test::kind_of([&] {
        if (!by_name) return broadcast_tensors(group, {tensor}, 1).get();
        torch::OrderedDict<std::string, at::Tensor> tensors;
        tensors.insert("a", tensor);
        broadcast_parameters(group, tensors, 1);
      });
      EXPECT_EQ(kind, by_name ? ErrorKind::failed_precondition : ErrorKind::invalid_argument);
      EXPECT_TRUE(at::equal(tensor, before));
    });
  };
  for (const bool by_name : {false, true}) {
    kinds([](int rank) { return rank == 0 ? at::ones({2, 3}) : at::full({3, 2}, rank); }, by_name);
    kinds([](int rank) { return at::full({4}, rank, rank == 2 ? at::kDouble : at::kFloat); }, by_name);
  }
  // Another number of dtypes: no rank waits for a collective that another rank does not run.
  on_ranks(groups, [&](const Group& group) {
    const at::Tensor first = at::ones({2}), second = at::ones({2}, group.rank() == 1 ? at::kInt : at::kFloat);
    EXPECT_TRUE(test::kind_of([&] { broadcast_tensors(group, {first, second}, 0).get(); }));
  });
}

// Memory formats may differ, for example if only one rank has converted its model.
TEST(BroadcastParameters, KeepsTheStridesOfEachRank) {
  on_ranks(3, Backend::memory, [&](const Group& group) {
    const at::Tensor values = at::arange(2 * 3 * 4 * 5).to(at::kFloat).view({2, 3, 4, 5});
    torch::OrderedDict<std::string, at::Tensor> tensors;
    const auto format = group.rank() == 0 ? at::MemoryFormat::Contiguous : at::MemoryFormat::ChannelsLast;
    tensors.insert("image", (values * (group.rank() == 1)).contiguous(format));
    tensors.insert("gaps", (values.view({30, 4}) * (group.rank() == 1)).t().slice(1, 0, 30, 2));
    broadcast_parameters(group, tensors, 1);
    EXPECT_TRUE(at::equal(tensors["image"], values));
    EXPECT_TRUE(tensors["image"].is_contiguous(format));
    EXPECT_TRUE(at::equal(tensors["gaps"], values.view({30, 4}).t().slice(1, 0, 30, 2)));
  });
}

// LBFGS's state after one iteration has undefined tensors until its history is full.
TEST(BroadcastOptimizerState, OfLbfgsWithAHistoryThatIsNotFull) {
  std::vector<std::vector<at::Tensor>> values(2);
  on_ranks(2, Backend::memory, [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    Net net(10 + rank);
    torch::optim::LBFGS optimizer(net.parameters(),
                                  torch::optim::LBFGSOptions(0.1).max_iter(3).history_size(9));
    const auto step = [&](int number) {
      const Batch batch = Batch::of_step(number, 1);
      optimizer.step([&] {
        optimizer.zero_grad();
        at::Tensor loss = at::mse_loss(net.forward(batch.data), batch.target);
        loss.backward();
        return loss;
      });
    };
    for (int number = 0; number < 2; ++number) step(number + group.rank());
    broadcast_parameters(group, net, 1);
    broadcast_optimizer_state(group, optimizer, 1);
    for (int number = 3; number < 5; ++number) step(number);
    values[rank] = values_of(net);
  });
  expect_close(values[0], values[1], 1e-12);
}

}  // namespace
}  // namespace weft::training::broadcast_state_test

#include <weft/parallel/data_parallel/negotiated/all_reduce_optimizer.h>

#include <weft/parallel/data_parallel/broadcast_state.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::data_parallel::all_reduce_optimizer_test {
namespace {

using namespace testing;
using collectives::ReduceOp;

torch::optim::SGD sgd_of(const torch::nn::Module& module) {
  return torch::optim::SGD(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
}

at::Tensor loss_of(Net& net, const Batch& batch, bool all = true) {
  return torch::mse_loss(net.forward(batch.data, all), batch.target);
}

// Whether this rank's forward of a step uses all layers.
using Uses = std::function<bool(int step, int rank)>;
bool always(int, int) { return true; }

// One process: the average over the parts of the ranks, whose batches have equal sizes.
std::vector<at::Tensor> train_alone(int ranks, int steps, const Uses& uses = always, int passes = 1,
                                    bool sum = false) {
  Net net;
  auto sgd = sgd_of(net);
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    for (int pass = 0; pass < passes; ++pass)
      for (int rank = 0; rank < ranks; ++rank) {
        const Batch batch = Batch::of_step(step * passes + pass, ranks).part(rank, ranks);
        (loss_of(net, batch, uses(step, rank)) / (sum ? 1 : ranks)).backward();
      }
    sgd.step();
  }
  return values_of(net);
}

// Calls f(reduction, group) on each rank.
template <class F>
void on_reductions(int ranks, F f, const NegotiationOptions& options = {}) {
  Company company(ranks, Backend::memory);
  on_ranks(company.groups(), [&](const Group& group) {
    f(NegotiatedReduction::make(company.agent(group.rank()), group, options), group);
  });
}

void train(int ranks, int steps, const AllReduceOptimizerOptions& options,
           const std::vector<at::Tensor>& expected, const Uses& uses = always) {
  on_reductions(ranks, [&](const auto& reduction, const Group& group) {
    Net net(static_cast<std::uint64_t>(group.rank() + 1));
    auto sgd = sgd_of(net);
    broadcast_parameters(group, net, 0);
    AllReduceOptimizer optimizer(reduction, sgd, net, options);
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad(step % 2 == 0);
      for (int pass = 0; pass < options.backward_passes_per_step; ++pass) {
        const Batch batch = Batch::of_step(step * options.backward_passes_per_step + pass, ranks);
        loss_of(net, batch.part(group.rank(), ranks), uses(step, group.rank())).backward();
      }
      optimizer.step();
    }
    expect_close(values_of(net), expected);
  });
}

class AllReduceTraining : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, AllReduceTraining, ::testing::Values(1, 2, 3, 4));

TEST_P(AllReduceTraining, EqualsOneProcessWithTheWholeBatch) {
  const int ranks = GetParam();
  // The loss of the whole batch at once.
  Net alone;
  auto sgd = sgd_of(alone);
  for (int step = 0; step < 6; ++step) {
    sgd.zero_grad();
    loss_of(alone, Batch::of_step(step, ranks)).backward();
    sgd.step();
  }
  train(ranks, 6, {}, values_of(alone));
}

TEST_P(AllReduceTraining, WithSeveralBackwardsPerStep) {
  const int ranks = GetParam();
  train(ranks, 3, {.backward_passes_per_step = 3}, train_alone(ranks, 3, always, 3));
}

TEST(AllReduceOptimizer, PredivideGivesTheSameAverage) {
  train(3, 4, {.gradient_predivide_factor = 1.7}, train_alone(3, 4));
}

TEST(AllReduceOptimizer, Sum) { train(2, 2, {.op = ReduceOp::sum}, train_alone(2, 2, always, 1, true)); }

TEST(AllReduceOptimizer, GroupsAreOneLaunch) {
  const AllReduceOptimizerOptions options{
      .groups = {{"first.weight", "last.bias", "middle.weight"}, {"first.bias", "middle.bias"}}};
  train(2, 3, options, train_alone(2, 3));
  on_reductions(2,
                [&](const auto& reduction, const Group& group) {
                  Net net;
                  auto sgd = sgd_of(net);
                  AllReduceOptimizer optimizer(reduction, sgd, net, options);
                  loss_of(net, Batch::of_step(0, 2).part(group.rank(), 2)).backward();
                  optimizer.step();
                  EXPECT_EQ(reduction->counts().launches, 3U);  // two groups and last.weight
                },
                {.fusion = {.bytes = 0, .cycle = std::chrono::nanoseconds{0}}});
}

// Ranks skip the middle layer in different steps; in step 3 all of them do.
TEST(AllReduceOptimizer, ParametersWithoutAGradientContributeZero) {
  const Uses uses = [](int step, int rank) { return step != 3 && (step + rank) % 2 == 0; };
  // Where no rank reaches it, its gradient is zero, and momentum goes on.
  Net alone;
  auto sgd = sgd_of(alone);
  for (int step = 0; step < 5; ++step) {
    sgd.zero_grad(false);
    for (int rank = 0; rank < 3; ++rank)
      (loss_of(alone, Batch::of_step(step, 3).part(rank, 3), uses(step, rank)) / 3).backward();
    sgd.step();
  }
  train(3, 5, {}, values_of(alone), uses);
}

TEST(AllReduceOptimizer, ZeroGradBetweenBackwardAndStepIsRefused) {
  on_reductions(2, [&](const auto& reduction, const Group& group) {
    Net net;
    auto sgd = sgd_of(net);
    AllReduceOptimizer optimizer(reduction, sgd, net);
    const Batch batch = Batch::of_step(0, 2).part(group.rank(), 2);
    loss_of(net, batch).backward();
    EXPECT_EQ(test::kind_of([&] { optimizer.zero_grad(); }), ErrorKind::failed_precondition);
    optimizer.synchronize();
    {
      const auto skip = optimizer.skip_synchronize();
      optimizer.step();
    }
    optimizer.zero_grad();
    loss_of(net, batch).backward();
    sgd.zero_grad();  // past the wrapper
    const auto error = error_of([&] { optimizer.step(); });
    ASSERT_TRUE(error);
    EXPECT_NE(std::string(error->what()).find("was replaced"), std::string::npos) << error->what();
  });
}

TEST(AllReduceOptimizer, ASecondBackwardBeforeStepIsRefused) {
  on_reductions(2, [&](const auto& reduction, const Group& group) {
    Net net;
    auto sgd = sgd_of(net);
    AllReduceOptimizer optimizer(reduction, sgd, net);
    const Batch batch = Batch::of_step(0, 2).part(group.rank(), 2);
    loss_of(net, batch).backward();
    const auto error = error_of([&] { loss_of(net, batch).backward(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::failed_precondition);
    EXPECT_NE(std::string(error->what()).find("raise backward_passes_per_step"), std::string::npos);
    optimizer.step();
  });
}

// Clipping: the gradients are the averages after synchronize().
TEST(AllReduceOptimizer, SkipSynchronize) {
  on_reductions(2, [&](const auto& reduction, const Group& group) {
    Net net;
    auto sgd = sgd_of(net);
    AllReduceOptimizer optimizer(reduction, sgd, net);
    loss_of(net, Batch::of_step(0, 2).part(group.rank(), 2)).backward();
    optimizer.synchronize();
    torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01);
    EXPECT_EQ(test::kind_of([&] { optimizer.step(); }), ErrorKind::failed_precondition);
    {
      const auto skip = optimizer.skip_synchronize();
      optimizer.step();
    }
    Net alone;
    auto own = sgd_of(alone);
    loss_of(alone, Batch::of_step(0, 2)).backward();
    torch::nn::utils::clip_grad_norm_(alone.parameters(), 0.01);
    own.step();
    expect_close(values_of(net), values_of(alone));
    EXPECT_EQ(reduction->counts().names, 6U);
  });
}

TEST(AllReduceOptimizer, SparseAsDense) {
  struct Words : torch::nn::Module {
    Words() {
      static std::mutex mutex;  // the ranks share the process's generator
      std::lock_guard lock(mutex);
      torch::manual_seed(3);
      table = register_module("table", torch::nn::Embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)));
      to(at::kDouble);
    }
    torch::nn::Embedding table{nullptr};
  };
  Words alone;
  torch::optim::SGD own(alone.parameters(), 0.1);
  (alone.table(at::tensor({0, 1, 1, 4})).sum() / 2).backward();
  alone.table->weight.mutable_grad() = alone.table->weight.grad().to_dense();
  own.step();
  on_reductions(2, [&](const auto& reduction, const Group& group) {
    Words words;
    torch::optim::SGD sgd(words.parameters(), 0.1);
    const at::Tensor part = group.rank() == 0 ? at::tensor({0, 1}) : at::tensor({1, 4});
    {
      AllReduceOptimizer optimizer(reduction, sgd, words);
      EXPECT_EQ(test::kind_of([&] { words.table(part).sum().backward(); }), ErrorKind::failed_precondition);
    }
    sgd.zero_grad();
    AllReduceOptimizer optimizer(reduction, sgd, words, {.sparse_as_dense = true});
    words.table(part).sum().backward();
    optimizer.step();
    expect_close(values_of(words), values_of(alone));
  });
}

TEST(AllReduceOptimizer, ALostRankEndsTheStepOfTheOthers) {
  Company company(3, Backend::memory);
  const auto groups = company.groups();
  std::vector<std::shared_ptr<NegotiatedReduction>> reductions(3);
  on_ranks(groups, [&](const Group& group) {
    reductions[static_cast<std::size_t>(group.rank())] =
        NegotiatedReduction::make(company.agent(group.rank()), group);
  });
  test::Event waits;
  on_ranks(groups, [&](const Group& group) {
    if (group.rank() == 2) {
      waits.wait();
      return company.end(2);
    }
    Net net;
    auto sgd = sgd_of(net);
    AllReduceOptimizer optimizer(reductions[static_cast<std::size_t>(group.rank())], sgd, net);
    loss_of(net, Batch::of_step(0, 3).part(group.rank(), 3)).backward();
    waits.set();
    EXPECT_TRUE(error_of([&] { optimizer.step(); }));
    EXPECT_TRUE(error_of([&] { optimizer.step(); }));  // and not hang
  });
}

TEST(AllReduceOptimizer, RefusesOptions) {
  on_reductions(1, [&](const auto& reduction, const Group&) {
    Net net, other(2);
    auto sgd = sgd_of(net);
    const auto kind = [&](const AllReduceOptimizerOptions& options, const torch::nn::Module& module) {
      return test::kind_of([&] { AllReduceOptimizer(reduction, sgd, module, options); });
    };
    EXPECT_EQ(kind({.op = ReduceOp::max}, net), ErrorKind::invalid_argument);
    EXPECT_EQ(kind({.backward_passes_per_step = 0}, net), ErrorKind::invalid_argument);
    EXPECT_EQ(kind({.op = ReduceOp::sum, .gradient_predivide_factor = 2}, net), ErrorKind::invalid_argument);
    EXPECT_EQ(kind({.gradient_predivide_factor = 0}, net), ErrorKind::invalid_argument);
    EXPECT_EQ(kind({.groups = {{"nothing"}}}, net), ErrorKind::invalid_argument);
    EXPECT_EQ(kind({}, other), ErrorKind::invalid_argument);
  });
}

}  // namespace
}  // namespace weft::data_parallel::all_reduce_optimizer_test

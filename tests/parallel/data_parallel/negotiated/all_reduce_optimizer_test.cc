#include <weft/parallel/data_parallel/negotiated/all_reduce_optimizer.h>

#include <weft/parallel/training/broadcast_state.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

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

// Returns whether this rank's forward of a step uses all layers.
using Uses = std::function<bool(int step, int rank)>;
bool always(int, int) { return true; }

// Trains in one process on the average over the parts of the ranks, whose batches have equal sizes.
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
    training::broadcast_parameters(group, net, 0);
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

TEST_P(AllReduceTraining, EqualsOneProcessWithSeveralBackwardsPerStep) {
  const int ranks = GetParam();
  train(ranks, 3, {.backward_passes_per_step = 3}, train_alone(ranks, 3, always, 3));
}

TEST(AllReduceOptimizer, PredivideGivesTheSameAverage) {
  train(3, 4, {.gradient_predivide_factor = 1.7}, train_alone(3, 4));
}

TEST(AllReduceOptimizer, MaySumInsteadOfAverage) {
  train(2, 2, {.op = ReduceOp::sum}, train_alone(2, 2, always, 1, true));
}

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
                  EXPECT_EQ(reduction->counts().launches, 4U);  // two groups, last.weight, the comparison
                },
                {.fusion = {.bytes = 0, .cycle = std::chrono::nanoseconds{0}}});
}

// Ranks skip the middle layer in different steps; in step 3 all of them do.
TEST(AllReduceOptimizer, ParametersWithoutAGradientContributeZero) {
  const Uses uses = [](int step, int rank) { return step != 3 && (step + rank) % 2 == 0; };
  // If no rank reaches the layer, its gradient is zero, and momentum still moves it.
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
    expect_error([&] { optimizer.step(); }, {"was replaced"});
  });
}

TEST(AllReduceOptimizer, ASecondBackwardBeforeStepIsRefused) {
  on_reductions(2, [&](const auto& reduction, const Group& group) {
    Net net;
    auto sgd = sgd_of(net);
    AllReduceOptimizer optimizer(reduction, sgd, net);
    const Batch batch = Batch::of_step(0, 2).part(group.rank(), 2);
    loss_of(net, batch).backward();
    expect_error([&] { loss_of(net, batch).backward(); }, ErrorKind::failed_precondition,
                 {"raise backward_passes_per_step"});
    optimizer.step();
  });
}

// Clips the gradients. After synchronize() they are the averages.
TEST(AllReduceOptimizer, ClipsBetweenSynchronizeAndStep) {
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
    EXPECT_EQ(reduction->counts().names, 7U);  // with the comparison
  });
}

// --- Sparse gradients ---

// A table with sparse gradients: of an Embedding, or of a parameter whose module does not declare them.
struct Words : torch::nn::Module {
  explicit Words(bool is_embedding) {
    const at::Tensor values = at::arange(12, at::kDouble).view({6, 2});
    if (is_embedding) {
      torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(6, 2).sparse(true)._weight(values));
      table = register_module("table", embedding)->weight;
    } else {
      table = register_parameter("table", values);
    }
  }
  at::Tensor loss(const at::Tensor& words) {
    return torch::embedding(table, words, -1, false, true).square().sum();
  }
  at::Tensor table;
};

// The words of a rank in a step. Undefined: the rank does not use the table.
using WordsOf = std::function<at::Tensor(int step, int rank)>;

void train_words(bool is_embedding, const AllReduceOptimizerOptions& options, const WordsOf& words_of) {
  constexpr int ranks = 3;
  Words alone(is_embedding);
  for (int step = 0; step < 3; ++step) {
    at::Tensor gradient = at::zeros_like(alone.table);
    for (int rank = 0; rank < ranks; ++rank)
      if (const at::Tensor words = words_of(step, rank); words.defined())
        gradient += torch::autograd::grad({alone.loss(words)}, {alone.table})[0].to_dense() / ranks;
    const at::NoGradGuard no_grad;
    alone.table -= 0.1 * gradient;
  }
  on_reductions(ranks, [&](const auto& reduction, const Group& group) {
    Words words(is_embedding);
    torch::optim::SGD sgd(words.parameters(), 0.1);
    AllReduceOptimizer optimizer(reduction, sgd, words, options);
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      if (const at::Tensor own = words_of(step, group.rank()); own.defined()) words.loss(own).backward();
      optimizer.step();
      EXPECT_EQ(words.table.grad().is_sparse(), !options.sparse_as_dense);
    }
    expect_close(values_of(words), values_of(alone));
  });
}

at::Tensor always_words(int step, int rank) { return at::tensor({rank + step, 4, rank + step}); }

TEST(AllReduceOptimizer, MayReduceSparseGradientsAsDense) {
  for (const bool is_embedding : {true, false})
    train_words(is_embedding, {.sparse_as_dense = true}, always_words);
}

TEST(AllReduceOptimizer, SparseGradientsStaySparse) {
  for (const bool is_embedding : {true, false}) train_words(is_embedding, {}, always_words);
  // Compression is for dense gradients.
  train_words(true, {.compression = at::kBFloat16}, always_words);
}

// Rank 1 does not use an Embedding in the first step, and another table in the second one.
TEST(AllReduceOptimizer, ARankWithoutASparseGradientContributesNoRows) {
  for (const bool is_embedding : {true, false})
    train_words(is_embedding, {}, [&](int step, int rank) {
      return rank == 1 && step == (is_embedding ? 0 : 1) ? at::Tensor() : always_words(step, rank);
    });
}

TEST(AllReduceOptimizer, ASparseGradientIsInNoGroup) {
  on_reductions(1, [&](const auto& reduction, const Group&) {
    Words words(true);
    torch::optim::SGD sgd(words.parameters(), 0.1);
    EXPECT_EQ(
        test::kind_of([&] { AllReduceOptimizer(reduction, sgd, words, {.groups = {{"table.weight"}}}); }),
        ErrorKind::invalid_argument);
  });
}

// --- Compression ---

// The reference in one process: rounds each rank's gradients, averages them in float32 and rounds again.
TEST(AllReduceOptimizer, CompressionRoundsWhatIsSent) {
  constexpr int ranks = 3;
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    const Tensors expected = rounded_averages(ranks, dtype);
    on_reductions(ranks, [&](const auto& reduction, const Group& group) {
      Net net(1, at::kFloat);
      torch::optim::SGD sgd(net.parameters(), 0.1);
      AllReduceOptimizer optimizer(reduction, sgd, net,
                                   {.groups = {{"first.weight", "last.bias"}}, .compression = dtype});
      for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad(step == 0);
        net.forward(at::full({2, 5}, group.rank() + 1.0)).sum().backward();
        optimizer.synchronize();
        expect_close(gradients_of(net), expected, 0);
      }
    });
  }
}

// --- Adasum ---

// The reference in one process: an optimizer for each rank, and the recursion over their steps.
TEST(AllReduceOptimizer, AdasumCombinesTheStepsOfTheRanks) {
  constexpr int steps = 3, passes = 2;
  const Uses uses = [](int step, int rank) { return step != 1 || rank != 0; };
  for (const int ranks : {1, 2, 4}) {
    const auto add_gradients = [&](Net& net, int step, int rank) {
      for (int pass = 0; pass < passes; ++pass)
        loss_of(net, Batch::of_step(step * passes + pass, ranks).part(rank, ranks), uses(step, rank))
            .backward();
    };
    std::vector<std::unique_ptr<Net>> nets;
    std::vector<torch::optim::SGD> optimizers;
    for (int rank = 0; rank < ranks; ++rank)
      optimizers.push_back(sgd_of(*nets.emplace_back(std::make_unique<Net>())));
    for (int step = 0; step < steps; ++step) {
      const auto before = values_of(*nets[0]);
      for (std::size_t rank = 0; rank < nets.size(); ++rank) {
        optimizers[rank].zero_grad();
        add_gradients(*nets[rank], step, static_cast<int>(rank));
        optimizers[rank].step();
      }
      const at::NoGradGuard no_grad;
      for (std::size_t i = 0; i < before.size(); ++i) {
        std::vector<at::Tensor> deltas;
        for (const auto& net : nets) deltas.push_back(net->parameters()[i] - before[i]);
        const at::Tensor combined = before[i] + adasum(deltas, 0, deltas.size());
        for (const auto& net : nets) net->parameters()[i].copy_(combined);
      }
    }
    on_reductions(ranks, [&](const auto& reduction, const Group& group) {
      Net net;
      auto sgd = sgd_of(net);
      AllReduceOptimizer optimizer(reduction, sgd, net, {.backward_passes_per_step = passes, .adasum = true});
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        add_gradients(net, step, group.rank());
        optimizer.step();
      }
      expect_close(values_of(net), values_of(*nets[0]));
      EXPECT_EQ(reduction->counts().launches, static_cast<std::size_t>(steps));  // the comparisons
    });
  }
}

// The steps are rounded, so the results agree with those of exact steps to 3 digits only.
TEST(AllReduceOptimizer, AdasumCombinesCompressedSteps) {
  std::vector<std::vector<at::Tensor>> trained(2);
  for (const bool compressed : {false, true})
    on_reductions(2, [&](const auto& reduction, const Group& group) {
      Net net;
      auto sgd = sgd_of(net);
      AllReduceOptimizerOptions options{.adasum = true};
      if (compressed) options.compression = at::kHalf;
      AllReduceOptimizer optimizer(reduction, sgd, net, options);
      loss_of(net, Batch::of_step(0, 2).part(group.rank(), 2)).backward();
      optimizer.step();
      if (group.rank() == 0) trained[compressed] = values_of(net);
    });
  expect_close(trained[0], trained[1], 1e-3);
  EXPECT_FALSE(at::equal(trained[0][0], trained[1][0]));
}

TEST(AllReduceOptimizer, AdasumReducesNoGradients) {
  on_reductions(2, [&](const auto& reduction, const Group& group) {
    Net net;
    auto sgd = sgd_of(net);
    AllReduceOptimizer optimizer(reduction, sgd, net, {.adasum = true});
    loss_of(net, Batch::of_step(0, 2).part(group.rank(), 2)).backward();
    EXPECT_EQ(test::kind_of([&] { optimizer.synchronize(); }), ErrorKind::failed_precondition);
    {
      const auto skip = optimizer.skip_synchronize();
      EXPECT_EQ(test::kind_of([&] { optimizer.step(); }), ErrorKind::failed_precondition);
    }
    torch::nn::utils::clip_grad_norm_(net.parameters(), 0.01);
    optimizer.step();
  });
}

// --- Joins and losses ---

// Rank r has 2 + r batches.
TEST(AllReduceOptimizer, ARankThatHasJoinedContributesZero) {
  constexpr int ranks = 3;
  Net alone;
  auto own = sgd_of(alone);
  for (int step = 0; step < 2 + ranks - 1; ++step) {
    own.zero_grad();
    for (int rank = std::max(step - 1, 0); rank < ranks; ++rank)
      (loss_of(alone, Batch::of_step(step, ranks).part(rank, ranks)) / ranks).backward();
    own.step();
  }
  on_reductions(ranks, [&](const auto& reduction, const Group& group) {
    Net net;
    auto sgd = sgd_of(net);
    AllReduceOptimizer optimizer(reduction, sgd, net, {.groups = {{"first.weight", "last.bias"}}});
    for (int step = 0; step < 2 + group.rank(); ++step) {
      optimizer.zero_grad();
      loss_of(net, Batch::of_step(step, ranks).part(group.rank(), ranks)).backward();
      optimizer.step();
    }
    const int last = reduction->join().get();
    EXPECT_EQ(last, ranks - 1);
    training::broadcast_parameters(group, net, last);
    expect_close(values_of(net), values_of(alone));
  });
}

TEST(AllReduceOptimizer, ALostRankFailsTheStepOfTheOthers) {
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
    EXPECT_EQ(kind({.compression = at::kDouble}, net), ErrorKind::invalid_argument);
    EXPECT_EQ(kind({.op = ReduceOp::sum, .adasum = true}, net), ErrorKind::invalid_argument);
    EXPECT_EQ(kind({.gradient_predivide_factor = 2, .adasum = true}, net), ErrorKind::invalid_argument);
    EXPECT_EQ(kind({.groups = {{"first.weight"}}, .adasum = true}, net), ErrorKind::invalid_argument);
  });
  on_reductions(3, [&](const auto& reduction, const Group&) {
    Net net;
    auto sgd = sgd_of(net);
    EXPECT_EQ(test::kind_of([&] { AllReduceOptimizer(reduction, sgd, net, {.adasum = true}); }),
              ErrorKind::invalid_argument);
  });
}

// --- Parameters that are frozen and unfrozen ---

// The layers that require grad in a step.
void freeze(Net& net, int step) {
  for (at::Tensor& parameter : net.middle->parameters()) parameter.requires_grad_(step >= 2);
  net.first->weight.requires_grad_(step != 3);
}

class Unfreezing : public ::testing::TestWithParam<AllReduceOptimizerOptions> {};
INSTANTIATE_TEST_SUITE_P(Options, Unfreezing,
                         ::testing::Values(AllReduceOptimizerOptions{},
                                           AllReduceOptimizerOptions{
                                               .groups = {{"first.weight", "first.bias", "last.bias"}}},
                                           AllReduceOptimizerOptions{.adasum = true}));

// With Adasum, both ranks have the same batches, so that it averages equal changes.
TEST_P(Unfreezing, EqualsOneProcess) {
  const bool equal = GetParam().adasum;
  const auto batch_of = [&](int step, int rank) { return Batch::of_step(step, 2).part(equal ? 0 : rank, 2); };
  Net alone;
  auto sgd_alone = sgd_of(alone);
  for (int step = 0; step < 6; ++step) {
    freeze(alone, step);
    sgd_alone.zero_grad();
    for (int rank = 0; rank < 2; ++rank) (loss_of(alone, batch_of(step, rank)) / 2).backward();
    sgd_alone.step();
  }
  on_reductions(2, [&](const auto& reduction, const Group& group) {
    Net net;
    freeze(net, 0);
    auto sgd = sgd_of(net);
    AllReduceOptimizer optimizer(reduction, sgd, net, GetParam());
    for (int step = 0; step < 6; ++step) {
      freeze(net, step);
      optimizer.zero_grad();
      loss_of(net, batch_of(step, group.rank())).backward();
      optimizer.step();
    }
    expect_close(values_of(net), values_of(alone));
  });
}

TEST(AllReduceOptimizer, AParameterThatOnlyOneRankUnfreezesIsRefusedOnBothRanks) {
  for (const bool adasum : {false, true})
    on_reductions(2, [&](const auto& reduction, const Group& group) {
      Net net;
      freeze(net, 0);
      auto sgd = sgd_of(net);
      AllReduceOptimizer optimizer(reduction, sgd, net, {.adasum = adasum});
      if (group.rank() == 1) freeze(net, 2);
      loss_of(net, Batch::of_step(0, 1), group.rank() == 0).backward();  // rank 1 does not reach the layer
      expect_error([&] { optimizer.step(); }, ErrorKind::failed_precondition);
      freeze(net, 2);
      optimizer.zero_grad();
      loss_of(net, Batch::of_step(0, 1)).backward();
      optimizer.step();
      expect_same_bits(group, net.middle->weight.detach());
    });
}

}  // namespace
}  // namespace weft::data_parallel::all_reduce_optimizer_test

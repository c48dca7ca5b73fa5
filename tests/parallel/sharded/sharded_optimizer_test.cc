#include <weft/parallel/sharded/sharded_optimizer.h>

#include <weft/dist_optim/local/internal/rowwise_adagrad.h>
#include <weft/parallel/sharded/checkpoint/checkpoints.h>

#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <sstream>

#include "tests/parallel/data_parallel/ranks.h"
#include "tests/parallel/sharded/checkpoint/states.h"

namespace weft::sharded::sharded_optimizer_test {
namespace {

using namespace data_parallel::testing;
using data_parallel::DistributedDataParallel;
using data_parallel::Overlap;
using dist_optim::OptimizerSpec;
using dist_optim::OptimizerState;
using test::expect_error;

struct Case {
  const char* name;
  OptimizerSpec spec;
  at::ScalarType dtype;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }
const Case cases[] = {
    {"Sgd", torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.01), at::kDouble},
    {"Adam", torch::optim::AdamOptions(0.03), at::kFloat},
    {"AdamWWithGroup",
     OptimizerSpec(torch::optim::AdamWOptions(0.03).weight_decay(0.1).amsgrad(true))
         .with_group("last", {{"lr", 0.3}, {"weight_decay", 0}}),
     at::kDouble},
};

// The reference: an optimizer of the whole parameters on each rank.
class Whole {
 public:
  Whole(const torch::nn::Module& module, const OptimizerSpec& spec)
      : parameters_(dist_optim::parameters_of(module)), leaves_(parameters_, spec) {}
  void step() {
    dist_optim::Gradients gradients;
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (parameters_[i].tensor.grad().defined()) gradients[i] = parameters_[i].tensor.grad();
    leaves_.step(gradients);
  }
  void zero_grad() {
    for (auto& parameter : parameters_) parameter.tensor.mutable_grad().reset();
  }
  OptimizerState state() const { return leaves_.state(); }
  void set_state(const OptimizerState& state) { leaves_.set_state(state); }

 private:
  std::vector<dist_optim::Parameter> parameters_;
  dist_optim::ShadowLeaves leaves_;
};

// Rank 0 leaves out the middle layer in odd steps, and all ranks in step 3.
at::Tensor loss_of(auto& forward, int step, const Group& group, at::ScalarType dtype = at::kDouble) {
  const Batch batch = Batch::of_step(step, group.size()).part(group.rank(), group.size());
  const bool all = step != 3 && (group.rank() != 0 || step % 2 == 0);
  return torch::mse_loss(forward.forward(batch.data.to(dtype), all), batch.target.to(dtype));
}

struct Steps {
  at::ScalarType dtype = at::kDouble;
  bool clips = false;
  int from = 0, to = 6;
};
// Trains and returns the losses of this rank.
std::vector<double> train(DistributedDataParallel<Net>& ddp, auto& optimizer, const Steps& steps) {
  std::vector<double> losses;
  for (int step = steps.from; step < steps.to; ++step) {
    optimizer.zero_grad();
    if (step % 3 == 2) {
      const auto guard = ddp.no_sync();
      loss_of(ddp, step + 100, ddp.group(), steps.dtype).backward();
    }
    const at::Tensor loss = loss_of(ddp, step, ddp.group(), steps.dtype);
    losses.push_back(loss.item<double>());
    loss.backward();
    if (steps.clips) torch::nn::utils::clip_grad_norm_(ddp.module().parameters(), 0.3);
    optimizer.step();
  }
  return losses;
}

std::shared_ptr<Net> frozen_net(at::ScalarType dtype = at::kDouble) {
  auto net = std::make_shared<Net>(1, dtype);
  net->middle->bias.set_requires_grad(false);
  return net;
}

void take_values(const Net& net, const std::vector<at::Tensor>& values) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < values.size(); ++i) net.parameters()[i].copy_(values[i]);
}

void expect_same(const torch::nn::Module& a, const torch::nn::Module& b) {
  expect_close(values_of(a), values_of(b), 0);
}

void expect_same(const OptimizerState& a, const OptimizerState& b) {
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.learning_rates, b.learning_rates);
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [key, tensor] : a.tensors) {
    ASSERT_TRUE(b.tensors.contains(key)) << key;
    EXPECT_TRUE(at::equal(tensor, b.tensors.at(key))) << key;
  }
}

class Equality : public ::testing::TestWithParam<std::tuple<int, Case, bool>> {};
INSTANTIATE_TEST_SUITE_P(Ways, Equality,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4), ::testing::ValuesIn(cases),
                                            ::testing::Bool()));

TEST_P(Equality, ParametersAndStateEqualThoseOfUnshardedSteps) {
  const auto& [ranks, one, overlap] = GetParam();
  on_ranks(ranks, ranks == 3 ? Backend::messages : Backend::memory,
           [&, &one = one, overlap = overlap](const Group& group) {
             const auto expected = frozen_net(one.dtype), net = frozen_net(one.dtype);
             const Steps steps{.dtype = one.dtype, .clips = !overlap};
             const data_parallel::Options options{.bucket_bytes = {200}, .overlap = Overlap::group};
             DistributedDataParallel plain{group, expected, options};
             Whole whole(*expected, one.spec);
             const auto losses = train(plain, whole, steps);
             DistributedDataParallel ddp{group, net, options};
             const at::Tensor alias = net->first->weight.detach();
             ShardedOptimizer optimizer(ddp, one.spec, {.bucket_bytes = 300, .overlap = overlap});
             EXPECT_EQ(train(ddp, optimizer, steps), losses);
             expect_same(*net, *expected);
             expect_same(optimizer.whole_state(std::nullopt), whole.state());
             EXPECT_TRUE(at::equal(alias, net->first->weight)) << "a view made before has the same memory";
           });
}

TEST(ShardedOptimizers, TheExampleOfTheHeaderEqualsLibTorch) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    const auto expected = std::make_shared<Net>(), net = std::make_shared<Net>();
    DistributedDataParallel plain{group, expected}, ddp{group, net};
    torch::optim::AdamW whole(expected->parameters(), torch::optim::AdamWOptions(3e-2));
    train(plain, whole, {});
    ShardedOptimizer optimizer(ddp, torch::optim::AdamWOptions(3e-2));
    train(ddp, optimizer, {});
    expect_same(*net, *expected);
  });
}

TEST(ShardedOptimizers, StepsInAGroupOfSomeRanks) {
  on_ranks(3, Backend::memory, [](const Group& all) {
    const auto group = all.split(all.rank() == 1 ? std::nullopt : std::optional(0)).get();
    if (!group) return;
    const auto expected = frozen_net(), net = frozen_net();
    DistributedDataParallel plain{*group, expected}, ddp{*group, net};
    Whole whole(*expected, cases[0].spec);
    train(plain, whole, {});
    ShardedOptimizer optimizer(ddp, cases[0].spec);
    train(ddp, optimizer, {});
    expect_same(*net, *expected);
  });
}

TEST(ShardedOptimizers, EachRankHasItsPartOfTheState) {
  constexpr int ranks = 4;
  on_ranks(ranks, Backend::messages, [](const Group& group) {
    auto module = std::make_shared<torch::nn::LinearImpl>(300, 100);
    DistributedDataParallel ddp{group, module};
    ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.1));
    ddp.forward(at::ones({1, 300})).sum().backward();
    optimizer.step();
    std::int64_t elements = 0;
    for (const auto& [key, tensor] : optimizer.state().tensors)
      if (tensor.dim() > 0) elements += tensor.numel();
    const std::int64_t whole = 2 * (300 * 100 + 100);  // exp_avg, exp_avg_sq
    EXPECT_LE(elements, whole / ranks + 2 * 32);
    const auto all = group.all_gather_object(elements).get();
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), std::int64_t{0}), whole);
  });
}

struct Mixed : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    return (second(torch::tanh(first(x)).to(at::kFloat)) * scale).to(at::kDouble);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(5, 7));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(7, 3));
  at::Tensor scale = register_parameter("scale", at::ones({}));
  at::Tensor none = register_parameter("none", at::zeros({0, 3}));
  Mixed() {
    first->to(at::kDouble);
    const at::NoGradGuard no_grad;
    int i = 0;
    for (const at::Tensor& parameter : parameters())
      if (parameter.numel() > 1)
        parameter.copy_(at::arange(parameter.numel()).view(parameter.sizes()).add(++i).sin());
  }
};

TEST(ShardedOptimizers, ParametersOfSeveralTypes) {
  on_ranks(3, Backend::memory, [](const Group& group) {
    for (const bool overlap : {false, true}) {
      const auto expected = std::make_shared<Mixed>(), net = std::make_shared<Mixed>();
      DistributedDataParallel plain{group, expected}, ddp{group, net};
      const OptimizerSpec spec = torch::optim::SGDOptions(0.1).momentum(0.9);
      Whole whole(*expected, spec);
      ShardedOptimizer optimizer(ddp, spec, {.overlap = overlap});
      for (int step = 0; step < 4; ++step) {
        const Batch batch = Batch::of_step(step, 3).part(group.rank(), 3);
        whole.zero_grad();
        torch::mse_loss(plain.forward(batch.data), batch.target).backward();
        whole.step();
        optimizer.zero_grad(false);
        torch::mse_loss(ddp.forward(batch.data), batch.target).backward();
        optimizer.step();
      }
      expect_same(*net, *expected);
    }
  });
}

TEST(ShardedOptimizers, ComputesInLowPrecision) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    for (const bool overlap : {false, true}) {
      const auto expected = std::make_shared<Net>(1, at::kFloat), net = std::make_shared<Net>(1, at::kFloat);
      const data_parallel::Options options{.mixed_precision = {.parameters = at::kBFloat16}};
      DistributedDataParallel plain{group, expected, options}, ddp{group, net, options};
      const OptimizerSpec spec = torch::optim::AdamOptions(0.03);
      Whole whole(*expected, spec);
      ShardedOptimizer optimizer(ddp, spec, {.overlap = overlap});
      const auto run = [&](auto& forward, auto& of) {
        for (int step = 0; step < 4; ++step) {
          const Batch batch = Batch::of_step(step, 2).part(group.rank(), 2);
          of.zero_grad();
          torch::mse_loss(forward.forward(batch.data.to(at::kFloat)).to(at::kFloat),
                          batch.target.to(at::kFloat))
              .backward();
          of.step();
        }
      };
      run(plain, whole);
      run(ddp, optimizer);
      expect_same(*net, *expected);
    }
  });
}

TEST(ShardedOptimizers, ZeroGradMayKeepTheGradients) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net};
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
    loss_of(ddp, 0, group).backward();
    const at::Tensor gradient = net->first->weight.grad();
    optimizer.zero_grad(false);
    EXPECT_TRUE(net->first->weight.grad().is_same(gradient));
    EXPECT_TRUE(at::equal(gradient, at::zeros_like(gradient)));
    optimizer.zero_grad();
    EXPECT_FALSE(net->first->weight.grad().defined());
  });
}

TEST(ShardedOptimizers, LearningRatesAreSetByGroup) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net};
    ShardedOptimizer optimizer(ddp, cases[2].spec);
    EXPECT_EQ(optimizer.learning_rate(), 0.03);
    EXPECT_EQ(optimizer.learning_rate("last"), 0.3);
    optimizer.set_learning_rate(0, "last");
    const at::Tensor first = net->first->weight.detach().clone(), last = net->last->weight.detach().clone();
    loss_of(ddp, 0, group).backward();
    optimizer.step();
    EXPECT_TRUE(at::equal(net->last->weight, last));
    EXPECT_FALSE(at::equal(net->first->weight, first));
    optimizer.set_learning_rate(0.5);
    EXPECT_EQ(optimizer.learning_rate("last"), 0.5);
    EXPECT_EQ(test::kind_of([&] { (void)optimizer.learning_rate("middle"); }), ErrorKind::not_found);
  });
}

// --- Overlap ---

// The ranks wait for the reduction of the last layer before the middle layer has its gradients. Before the
// first layer has them, the last layer has been stepped by both ranks.
TEST(ShardedOptimizers, OverlapExchangesABucketBeforeBackwardEnds) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net, {.bucket_bytes = {1}, .overlap = Overlap::group}};
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1), {.bucket_bytes = 1, .overlap = true});
    const at::Tensor before = net->last->weight.detach().clone();
    net->middle->weight.register_hook([&](const at::Tensor&) { ddp.group().barrier().get(); });
    net->first->weight.register_hook([&](const at::Tensor&) {
      test::eventually("both halves have changed",
                       [&] { return (net->last->weight.detach() != before).all().item<bool>(); });
    });
    loss_of(ddp, 0, group).backward();
    EXPECT_EQ(test::kind_of([&] { (void)optimizer.state(); }), ErrorKind::failed_precondition);
    optimizer.step();
    (void)optimizer.state();
  });
}

// A rank that refuses aborts the group, which may end the backward of the other rank before it refuses, too.
TEST(ShardedOptimizers, OverlapRefusesASecondBackwardBeforeTheStep) {
  std::atomic<int> refused = 0;
  on_ranks(2, Backend::memory, [&](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Net>()};
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1), {.overlap = true});
    loss_of(ddp, 0, group).backward();
    const std::string text = test::message_of([&] { loss_of(ddp, 0, group).backward(); });
    if (text.find("call step() after each backward") == std::string::npos) {
      EXPECT_NE(text.find("aborted it: backward of rank"), std::string::npos) << text;
      return;
    }
    ++refused;
    EXPECT_EQ(test::kind_of([&] { optimizer.step(); }), ErrorKind::failed_precondition);
  });
  EXPECT_GE(refused, 1);
}

// --- Join ---

class Uneven : public ::testing::TestWithParam<std::tuple<std::vector<int>, bool>> {};
INSTANTIATE_TEST_SUITE_P(Counts, Uneven,
                         ::testing::Combine(::testing::Values(std::vector{3, 5}, std::vector{5, 3},
                                                              std::vector{0, 2}, std::vector{4, 6, 1}),
                                            ::testing::Bool()));

// Equals training without sharding on the rank that has the most batches. Gradients are clipped, except with
// overlap.
TEST_P(Uneven, ARankWithoutABatchStepsItsPart) {
  const auto& [counts, overlap] = GetParam();
  Company company(static_cast<int>(counts.size()), Backend::memory);
  on_ranks(company.groups(), [&, &counts = counts, overlap = overlap](const Group& group) {
    const int longest = *std::max_element(counts.begin(), counts.end());
    const int own = counts[static_cast<std::size_t>(group.rank())];
    const auto expected = frozen_net(), net = frozen_net();
    DistributedDataParallel plain{group, expected, {.bucket_bytes = {200}}};
    DistributedDataParallel ddp{group, net, {.bucket_bytes = {200}}};
    const OptimizerSpec spec = torch::optim::AdamOptions(0.03);
    Whole whole(*expected, spec);
    ShardedOptimizer optimizer(ddp, spec, {.bucket_bytes = 300, .overlap = overlap});
    std::vector<int> steps;
    for (int step = 0; step < own; ++step) steps.push_back(step);
    const auto epoch = [&](auto& forward, auto& of, std::vector<data_parallel::Joinable*> others) {
      for (const int step : forward.join(steps, {.divide_by_active = true}, std::move(others))) {
        of.zero_grad();
        loss_of(forward, step, group).backward();
        if (!overlap) torch::nn::utils::clip_grad_norm_(forward.module().parameters(), 0.3);
        of.step();
      }
    };
    epoch(plain, whole, {});
    epoch(ddp, optimizer, {&optimizer});
    expect_same(*net, *expected);
    const OptimizerState state = optimizer.whole_state(std::nullopt);
    if (own == longest) expect_same(state, whole.state());
  });
}

// --- States ---

TEST(ShardedOptimizers, AStateContinuesOnAnotherNumberOfRanks) {
  std::vector<OptimizerState> parts(3);
  OptimizerState whole;
  std::vector<at::Tensor> values, expected;
  std::vector<double> losses;
  const auto full_batches = [](auto& ddp, auto& optimizer, int from, int to) {
    std::vector<double> losses;
    for (int step = from; step < to; ++step) {
      const Batch batch = Batch::of_step(step, 1);  // the same on all ranks
      optimizer.zero_grad();
      const at::Tensor loss = torch::mse_loss(ddp.forward(batch.data), batch.target);
      losses.push_back(loss.template item<double>());
      loss.backward();
      optimizer.step();
    }
    return losses;
  };
  {
    on_ranks(3, Backend::memory, [&](const Group& group) {
      auto net = std::make_shared<Net>();
      DistributedDataParallel ddp{group, net};
      ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.03), {.bucket_bytes = 300});
      full_batches(ddp, optimizer, 0, 3);
      parts[static_cast<std::size_t>(group.rank())] = optimizer.state();
      const OptimizerState of_root = optimizer.whole_state(1);
      EXPECT_EQ(of_root.tensors.empty(), group.rank() != 1);
      if (group.rank() == 1) {
        whole = of_root;
        values = values_of(*net);
      }
      group.barrier().get();
      const auto later = full_batches(ddp, optimizer, 3, 6);
      if (group.rank() == 1) {
        losses = later;
        expected = values_of(*net);
      }
    });
  }
  for (const int ranks : {1, 2, 4})
    for (const auto& states : {parts, std::vector{whole}}) {
      on_ranks(ranks, Backend::memory, [&](const Group& group) {
        auto net = std::make_shared<Net>(2);
        take_values(*net, values);
        DistributedDataParallel ddp{group, net};
        ShardedOptimizer optimizer(ddp, torch::optim::AdamOptions(0.03));
        optimizer.set_state(states);
        const auto later = full_batches(ddp, optimizer, 3, 6);
        for (std::size_t i = 0; i < later.size(); ++i) EXPECT_NEAR(later[i], losses[i], 1e-12);
        expect_close(values_of(*net), expected);
      });
    }
}

TEST(ShardedOptimizers, RefusesAStateOfOtherParameters) {
  on_ranks(1, [](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Net>()};
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1).momentum(0.9));
    const OptimizerState other{"SGD", {{"", 0.1}}, {{"other.weight[0:4]/momentum_buffer", at::ones({4})}}};
    expect_error([&] { optimizer.set_state({other}); }, "other.weight[0:4]");
    EXPECT_EQ(test::kind_of([&] { optimizer.set_state({}); }), ErrorKind::invalid_argument);
  });
}

// Rank 2 leaves, and returns with another model.
TEST(ShardedOptimizers, ContinuesInASmallerAndALargerGroup) {
  on_ranks(3, Backend::memory, [](const Group& group) {
    const bool leaves = group.rank() == 2;
    const OptimizerSpec spec = torch::optim::AdamOptions(0.03);
    auto net = std::make_shared<Net>();
    std::optional<DistributedDataParallel<Net>> ddp(std::in_place, group, net);
    std::optional<ShardedOptimizer> optimizer(std::in_place, *ddp, spec,
                                              ShardedOptimizerOptions{.bucket_bytes = 300});
    train(*ddp, *optimizer, {.to = 3});
    const OptimizerState saved = optimizer->whole_state(std::nullopt);
    optimizer->set_learning_rate(0.01);
    const auto smaller = group.split(leaves ? std::nullopt : std::optional(0), group.rank()).get();
    if (leaves) {
      optimizer.reset();
      ddp.reset();
      net = std::make_shared<Net>(9);
      ddp.emplace(group, net);
      optimizer.emplace(*ddp, spec, ShardedOptimizerOptions{.bucket_bytes = 300});
      optimizer->set_state({saved});
    } else {
      ddp->set_group(*smaller);
      optimizer->set_group({});
      EXPECT_TRUE(optimizer->state().tensors.empty());
      EXPECT_EQ(optimizer->learning_rate(), 0.01);
      optimizer->set_group({saved});
      EXPECT_EQ(optimizer->learning_rate(), 0.03);
      expect_same(optimizer->whole_state(std::nullopt), saved);
      ddp->set_group(group);
      optimizer->set_group({saved});
    }
    expect_same(optimizer->whole_state(std::nullopt), saved);
    const auto expected = std::make_shared<Net>();
    take_values(*expected, net->parameters());
    DistributedDataParallel plain{group, expected};
    Whole whole(*expected, spec);
    whole.set_state(saved);
    train(plain, whole, {});
    train(*ddp, *optimizer, {});
    expect_same(*net, *expected);
  });
}

// The new rank has frozen the parameter that the others have unfrozen, and does not know that they have
// frozen another one.
TEST(ShardedOptimizers, ANewRankFollowsWhatTheOthersHaveFrozen) {
  on_ranks(3, Backend::memory, [](const Group& group) {
    const OptimizerSpec spec = torch::optim::AdamOptions(0.03);
    const ShardedOptimizerOptions options{.bucket_bytes = 300};
    const auto make = [](int seed) {
      auto net = std::make_shared<Net>(seed);
      net->first->weight.requires_grad_(false);
      return net;
    };
    const auto expected = std::make_shared<Net>();
    Whole whole(*expected, spec);
    auto net = make(1);
    std::optional<DistributedDataParallel<Net>> ddp(std::in_place, group, net);
    std::optional<ShardedOptimizer> optimizer(std::in_place, *ddp, spec, options);
    train(*ddp, *optimizer, {.to = 2});
    net->first->weight.requires_grad_(true);
    net->middle->bias.requires_grad_(false);
    train(*ddp, *optimizer, {.from = 2, .to = 4});
    const OptimizerState saved = optimizer->whole_state(std::nullopt);
    if (group.rank() == 2) {
      optimizer.reset();
      ddp.reset();
      net = make(9);
      ddp.emplace(group, net);
      optimizer.emplace(*ddp, spec, options);
      optimizer->set_state({saved});
    } else {
      ddp->set_group(group);
      optimizer->set_group({saved});
    }
    EXPECT_TRUE(net->first->weight.requires_grad());
    EXPECT_FALSE(net->middle->bias.requires_grad());
    take_values(*expected, net->parameters());
    expected->middle->bias.requires_grad_(false);
    DistributedDataParallel plain{group, expected};
    whole.set_state(saved);
    for (const int from : {4, 6}) {
      train(plain, whole, {.from = from, .to = from + 2});
      train(*ddp, *optimizer, {.from = from, .to = from + 2});
      expect_same(*net, *expected);
      for (const auto& each : {net, expected}) each->middle->bias.requires_grad_(true);
    }
    expect_same(optimizer->whole_state(std::nullopt), whole.state());
  });
}

// --- Changes of the module ---

std::string saved(double value) {
  const auto net = std::make_shared<Net>();
  for (const at::Tensor& parameter : net->parameters()) parameter.detach().fill_(value);
  std::ostringstream out;
  torch::save(net, out);
  return out.str();
}

void load(std::shared_ptr<Net> net, const std::string& file) {
  std::istringstream in(file);
  torch::load(net, in);
}

// Without a DistributedDataParallel's backward.
TEST(ShardedOptimizers, AStepBeginsAtLoadedValues) {
  const std::string file = saved(0.5);
  on_ranks(2, Backend::memory, [&](const Group& group) {
    const auto net = std::make_shared<Net>(), expected = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net};
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1).momentum(0.9), {.bucket_bytes = 200});
    torch::optim::SGD whole(expected->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
      for (const auto& of : {net, expected}) {
        if (step % 2 == 1) load(of, file);
        for (at::Tensor& parameter : of->parameters())
          parameter.mutable_grad() = at::full_like(parameter.detach(), step + 1);
      }
      optimizer.step();
      whole.step();
      expect_same(*net, *expected);
    }
    load(net, saved(1));
    net->first->weight.set_data(at::zeros({2}, at::kDouble));
    if (group.rank() == 1) net->first->weight.set_data(at::ones({7, 5}, at::kDouble));
    expect_error([&] { optimizer.step(); }, "parameter first.weight is Double[2]");
  });
}

TEST(ShardedOptimizers, TrainLoadedValuesFurther) {
  const std::string file = saved(0.5);
  for (const bool overlap : {false, true}) {
    on_ranks(2, Backend::memory, [&](const Group& group) {
      const auto net = std::make_shared<Net>(), expected = std::make_shared<Net>();
      const torch::optim::AdamOptions spec(0.03);
      DistributedDataParallel ddp{group, net}, plain{group, expected};
      ShardedOptimizer optimizer(ddp, spec, {.bucket_bytes = 200, .overlap = overlap});
      torch::optim::Adam whole(expected->parameters(), spec);
      for (const int from : {0, 3}) {
        train(ddp, optimizer, {.from = from, .to = from + 3});
        train(plain, whole, {.from = from, .to = from + 3});
        expect_same(*net, *expected);
        load(net, file);
        load(expected, file);
      }
    });
  }
}

TEST(ShardedOptimizers, StepParametersThatBeginToRequireGrad) {
  for (const bool overlap : {false, true}) {
    on_ranks(2, Backend::memory, [&](const Group& group) {
      const auto net = std::make_shared<Net>(), expected = std::make_shared<Net>();
      const OptimizerSpec spec =
          OptimizerSpec(torch::optim::AdamOptions(0.03)).with_group("last", {{"lr", 0.3}});
      const auto train_only = [&](const std::vector<std::string>& prefixes) {
        for (const auto& each : {net, expected})
          for (auto& entry : each->named_parameters())
            entry.value().requires_grad_(
                std::any_of(prefixes.begin(), prefixes.end(),
                            [&](const std::string& prefix) { return entry.key().starts_with(prefix); }));
      };
      Whole whole(*expected, spec);
      train_only({"last"});
      DistributedDataParallel ddp{group, net}, plain{group, expected};
      ShardedOptimizer optimizer(ddp, spec, {.bucket_bytes = 200, .overlap = overlap});
      const std::vector<std::vector<std::string>> trained{{"last"}, {"last", "first.bias"}, {"first"}, {""}};
      for (std::size_t i = 0; i < trained.size(); ++i) {
        train_only(trained[i]);
        const int from = 6 * static_cast<int>(i);
        train(ddp, optimizer, {.from = from, .to = from + 3});
        train(plain, whole, {.from = from, .to = from + 3});
        expect_same(*net, *expected);
      }
      expect_same(optimizer.whole_state(std::nullopt), whole.state());
    });
  }
}

// A run of all parameters is restored into one that has frozen some of them, and unfreezes them later.
TEST(ShardedOptimizers, ARestoredStateServesParametersThatAreUnfrozenLater) {
  for (const bool overlap : {false, true}) {
    const testing::Folder folder;
    on_ranks(2, Backend::memory, [&](const Group& group) {
      const OptimizerSpec spec =
          OptimizerSpec(torch::optim::AdamOptions(0.03)).with_group("last", {{"lr", 0.3}});
      const ShardedOptimizerOptions options{.bucket_bytes = 200, .overlap = overlap};
      const auto saved = std::make_shared<Net>(), net = std::make_shared<Net>(),
                 expected = std::make_shared<Net>();
      DistributedDataParallel before{group, saved}, plain{group, expected};
      ShardedOptimizer first(before, spec, options);
      Whole whole(*expected, spec);
      train(before, first, {.to = 3});
      train(plain, whole, {.to = 3});
      Checkpoints checkpoints(group, folder.path);
      SlicedState state;
      add_module(state, *saved);
      first.add_to(state);
      checkpoints.save(3, state).get();

      const auto freeze = [&](bool on) {
        for (const auto& each : {net, expected})
          for (const at::Tensor& parameter : {each->first->weight, each->middle->bias})
            parameter.set_requires_grad(!on);
      };
      freeze(true);
      DistributedDataParallel ddp{group, net};
      ShardedOptimizer optimizer(ddp, spec, options);
      SlicedState loaded;
      add_module(loaded, *net);
      optimizer.add_wanted_to(loaded, checkpoints.names(3));
      loaded.notes = checkpoints.load(3, loaded);
      optimizer.take_from(loaded);
      expect_same(optimizer.whole_state(std::nullopt), whole.state());
      for (const int from : {4, 7}) {
        train(ddp, optimizer, {.from = from, .to = from + 2});
        train(plain, whole, {.from = from, .to = from + 2});
        expect_same(*net, *expected);
        freeze(false);
      }
      expect_same(optimizer.whole_state(std::nullopt), whole.state());
    });
  }
}

// --- Faults ---

void expect_refusal(const std::vector<std::string>& words, const auto& make) {
  on_ranks(2, Backend::memory, [&](const Group& group) {
    expect_error([&] { make(group); }, ErrorKind::invalid_argument, words);
  });
}

TEST(ShardedOptimizers, RanksWithDifferentSpecsAreRefusedOnAllRanks) {
  expect_refusal({"rank 0 has optimizer Adam(", "lr=0.1", "rank 1 has optimizer Adam(", "lr=0.2"},
                 [](const Group& group) {
                   DistributedDataParallel ddp{group, std::make_shared<Net>()};
                   ShardedOptimizer(ddp, torch::optim::AdamOptions(0.1 * (1 + group.rank())));
                 });
}

TEST(ShardedOptimizers, RanksWithDifferentParametersAreRefusedOnAllRanks) {
  expect_refusal({"rank 0 has parameter last.weight Double[3, 7] on cpu", "rank 1 has parameter last.bias"},
                 [](const Group& group) {
                   auto net = std::make_shared<Net>();
                   DistributedDataParallel ddp{group, net};
                   if (group.rank() == 1) net->last->weight.set_requires_grad(false);
                   ShardedOptimizer(ddp, torch::optim::SGDOptions(0.1));
                 });
}

TEST(ShardedOptimizers, AnOptimizerOfRowsIsRefused) {
  expect_refusal({"RowwiseAdagrad", "steps rows"}, [](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Net>()};
    ShardedOptimizer(ddp, dist_optim::RowwiseAdagradOptions());
  });
}

TEST(ShardedOptimizers, AParameterInAPartOfAStorageIsRefusedByName) {
  struct Halves : torch::nn::Module {
    explicit Halves(bool views) {
      const at::Tensor both = at::zeros({2, 3});
      a = register_parameter("a", views ? both[0] : at::zeros({3}));
      b = register_parameter("b", views ? both[1] : at::zeros({3}));
    }
    at::Tensor forward() { return (a + b).sum(); }
    at::Tensor a, b;
  };
  expect_refusal({"rank 1", "parameter a has 12 bytes of a storage of 24", "clone() it"},
                 [](const Group& group) {
                   DistributedDataParallel ddp{group, std::make_shared<Halves>(group.rank() == 1)};
                   ShardedOptimizer(ddp, torch::optim::SGDOptions(0.1));
                 });
}

TEST(ShardedOptimizers, ASparseGradientIsRefusedByNameAndNothingChanges) {
  expect_refusal({"the gradient of weight is sparse"}, [](const Group& group) {
    auto embedding = torch::nn::Embedding(torch::nn::EmbeddingOptions(10, 3).sparse(true));
    DistributedDataParallel ddp{group, embedding};
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
    ddp.forward(at::arange(4)).sum().backward();
    const at::Tensor before = embedding->weight.detach().clone();
    const auto error = error_of([&] { optimizer.step(); });
    EXPECT_TRUE(at::equal(embedding->weight, before));
    optimizer.zero_grad();
    optimizer.step();
    if (error) throw *error;
  });
}

TEST(ShardedOptimizers, ARankThatDoesNotStepIsNamed) {
  Company company(2, Backend::memory);
  on_ranks(company.groups({.timeout = std::chrono::seconds{2}}), [](const Group& group) {
    auto net = std::make_shared<Net>();
    DistributedDataParallel ddp{group, net};
    ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
    loss_of(ddp, 0, group).backward();
    const at::Tensor alias = net->first->weight.detach();
    const void* const memory = alias.const_data_ptr();
    if (group.rank() == 0) {
      expect_error([&] { optimizer.step(); }, ErrorKind::deadline_exceeded, "worker1");
      expect_error([&] { optimizer.step(); }, ErrorKind::failed_precondition, "call set_group()");
      EXPECT_TRUE(at::equal(net->first->weight, alias));
      EXPECT_NE(net->first->weight.const_data_ptr(), memory) << "to which rank 1 may still write";
    }
    ddp.group().barrier(std::chrono::minutes{1}).get();  // the step has a group to itself
    ddp.set_group(group);
    optimizer.set_group({});
    train(ddp, optimizer, {});
    const auto sums = group.all_gather_object(net->first->weight.sum().item<double>()).get();
    EXPECT_EQ(sums[0], sums[1]);
  });
}

TEST(ShardedOptimizers, DestroyingItFailsTheStepOfTheOtherRank) {
  on_ranks(2, Backend::memory, [](const Group& group) {
    DistributedDataParallel ddp{group, std::make_shared<Net>()};
    expect_error(
        [&] {
          ShardedOptimizer optimizer(ddp, torch::optim::SGDOptions(0.1));
          loss_of(ddp, 0, group).backward();
          if (group.rank() == 1) throw rpc::Error(ErrorKind::cancelled, "planted");
          optimizer.step();
        },
        group.rank() == 1 ? "planted" : "an exception has destroyed");
  });
}

}  // namespace
}  // namespace weft::sharded::sharded_optimizer_test

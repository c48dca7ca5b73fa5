#include <weft/parallel/elastic/state.h>

#include <weft/parallel/elastic/internal/state_access.h>
#include <weft/parallel/elastic/internal/tensor_memory.h>

#include "tests/parallel/data_parallel/ranks.h"

namespace weft::elastic {
namespace state_test {

using collectives::testing::on_ranks;
using data_parallel::testing::Batch;
using data_parallel::testing::Company;
using data_parallel::testing::expect_close;
using data_parallel::testing::Group;
using data_parallel::testing::Net;
using data_parallel::testing::values_of;
using rpc::ErrorKind;
using test::error_of;
using test::kind_of;

using MakeOptimizer = std::unique_ptr<torch::optim::Optimizer> (*)(std::vector<at::Tensor>);

template <class Optimizer, class Options>
MakeOptimizer with(Options) {
  return [](std::vector<at::Tensor> parameters) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<Optimizer>(std::move(parameters), Options());
  };
}
struct Momentum : torch::optim::SGDOptions {
  Momentum() : SGDOptions(0.1) { momentum(0.9); }
};
struct Amsgrad : torch::optim::AdamOptions {
  Amsgrad() : AdamOptions(0.01) { amsgrad(true); }
};
struct Centered : torch::optim::RMSpropOptions {
  Centered() : RMSpropOptions(0.01) { centered(true).momentum(0.5); }
};
struct Lbfgs : torch::optim::LBFGSOptions {
  Lbfgs() : LBFGSOptions(0.1) { max_iter(3).history_size(4); }
};

// An optimizer of the program: each step moves by the sign of the gradient, and by less each time. It is
// saved by its archive.
struct Signs : torch::optim::Optimizer {
  Signs(std::vector<at::Tensor> parameters, const torch::optim::SGDOptions& options)
      : Optimizer(std::move(parameters), std::make_unique<torch::optim::SGDOptions>(options)) {}
  at::Tensor step(LossClosure closure) override {
    closure();
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : param_groups()[0].params()) parameter.sub_(parameter.grad().sign() * rate);
    rate *= 0.5;
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    archive.write("rate", at::full({}, rate, at::kDouble));
  }
  void load(torch::serialize::InputArchive& archive) override {
    at::Tensor saved;
    archive.read("rate", saved);
    rate = saved.item<double>();
  }
  double rate = 0.1;
};

struct Kind {
  const char* name;
  MakeOptimizer make;
};
std::ostream& operator<<(std::ostream& out, const Kind& kind) { return out << kind.name; }
const Kind kinds[] = {
    {"SGD", with<torch::optim::SGD>(Momentum())},
    {"Adam", with<torch::optim::Adam>(Amsgrad())},
    {"AdamW", with<torch::optim::AdamW>(torch::optim::AdamWOptions())},
    {"Adagrad", with<torch::optim::Adagrad>(torch::optim::AdagradOptions())},
    {"RMSprop", with<torch::optim::RMSprop>(Centered())},
    {"LBFGS", with<torch::optim::LBFGS>(Lbfgs())},
    {"Own", with<Signs>(Momentum())},
};

struct Trainer {
  explicit Trainer(const Kind& kind, std::uint64_t seed = 1)
      : model(std::make_shared<Net>(seed)), optimizer(kind.make(model->parameters())) {
    state.add("model", model).add("optimizer", *optimizer).add("steps", steps);
  }
  void step(int number) {
    const Batch batch = Batch::of_step(number, 1);
    const auto closure = [&] {
      optimizer->zero_grad();
      at::Tensor loss = at::mse_loss(model->forward(batch.data), batch.target);
      loss.backward();
      return loss;
    };
    optimizer->step(closure);
    ++steps;
  }
  std::shared_ptr<Net> model;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::int64_t steps = 0;
  State state;
};

class OptimizersOf : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(Kinds, OptimizersOf, ::testing::ValuesIn(kinds),
                         [](const auto& info) { return info.param.name; });

// Later steps do not change a commit, and a restored training repeats the same steps.
TEST_P(OptimizersOf, AreRestored) {
  Trainer trainer(GetParam());
  trainer.state.commit();  // before the first step: most optimizers have no state
  const std::size_t states = trainer.optimizer->state().size();
  trainer.step(0);
  trainer.state.restore();
  EXPECT_EQ(trainer.optimizer->state().size(), states);
  for (int step = 0; step < 3; ++step) trainer.step(step);
  trainer.state.commit();
  for (int step = 3; step < 6; ++step) trainer.step(step);
  const auto expected = values_of(*trainer.model);
  trainer.optimizer->param_groups()[0].options().set_lr(5);
  trainer.step(6);
  for (int again = 0; again < 2; ++again) {
    trainer.state.restore();
    EXPECT_EQ(trainer.steps, 3);
    EXPECT_FALSE(trainer.model->first->weight.grad().defined());
    for (int step = 3; step < 6; ++step) trainer.step(step);
    expect_close(values_of(*trainer.model), expected, 0);
  }
}

// Rank 1 has the most commits.
TEST_P(OptimizersOf, GetTheStateOfTheMostAdvancedRank) {
  Company company(3);
  std::vector<std::vector<at::Tensor>> values(3);
  std::vector<std::optional<int>> sources(3), again(3);
  std::vector<std::uint64_t> commits(3);
  on_ranks(company.groups(), [&](const Group& group) {
    const auto rank = static_cast<std::size_t>(group.rank());
    const auto trainer = std::make_unique<Trainer>(GetParam(), 10 + rank);
    for (int step = 0; rank > 0 && step < (rank == 1 ? 4 : 2); ++step) {
      trainer->step(step);
      trainer->state.commit();
    }
    sources[rank] = trainer->state.sync(group);
    commits[rank] = trainer->state.commits();
    again[rank] = trainer->state.sync(group);
    EXPECT_EQ(trainer->steps, 4);
    trainer->step(4);
    trainer->state.restore();
    trainer->step(4);
    trainer->step(5);
    values[rank] = values_of(*trainer->model);
  });
  Trainer alone(GetParam(), 11);
  for (int step = 0; step < 6; ++step) alone.step(step);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(sources[rank], 1);
    EXPECT_EQ(again[rank], std::nullopt);  // all have that commit now
    EXPECT_EQ(commits[rank], 4U);
    expect_close(values[rank], values_of(*alone.model), 1e-12);
  }
}

TEST(StateOf, TensorsSamplersGeneratorsAndValues) {
  at::Tensor tensor = at::ones({3});
  std::vector<at::Tensor> several{at::zeros({2}), at::ones({1})};
  at::Generator generator = at::detail::createCPUGenerator(4);
  ElasticSampler sampler(20, {.seed = 2});
  sampler.set_ranks(0, 1);
  std::map<std::string, std::vector<double>> history{{"loss", {1, 2}}};
  State state;
  EXPECT_EQ(kind_of([&] { state.restore(); }), ErrorKind::failed_precondition);
  state.add("tensor", tensor).add("several", several).add("generator", generator).add("sampler", sampler);
  state.add("history", history);
  EXPECT_EQ(kind_of([&] { state.add("tensor", tensor); }), ErrorKind::already_exists);
  sampler.next(5), sampler.deliver(), sampler.record();
  state.commit();
  const at::Tensor drawn = at::randn({4}, generator);
  tensor.fill_(7), several[1].fill_(8);
  history["loss"].push_back(3);
  sampler.next(5), sampler.deliver(), sampler.record();
  state.restore();
  EXPECT_TRUE(at::equal(tensor, at::ones({3})));
  EXPECT_EQ(several[1].item<float>(), 1);
  EXPECT_TRUE(at::equal(at::randn({4}, generator), drawn));
  EXPECT_EQ(history["loss"].size(), 2U);
  EXPECT_EQ(sampler.progress().processed, 5U);
}

TEST(StateOf, ACommitWithinABatchIsRefused) {
  ElasticSampler sampler(20, {.seed = 2});
  sampler.set_ranks(0, 1);
  std::int64_t steps = 0;
  State state;
  state.add("steps", steps).add("sampler", sampler);
  sampler.next(5), sampler.deliver();
  state.commit();  // the batch is not processed yet
  EXPECT_EQ(sampler.round().weight, 1);
  ++steps;
  for (const auto& commit : std::vector<std::function<void()>>{
           [&] { state.commit(); }, [&] { state.commit_every(3); }, [&] { state.check(); }})
    EXPECT_EQ(kind_of([&] { return commit(), 0; }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { state.step([] {}); }), ErrorKind::failed_precondition);
  EXPECT_EQ(state.commits(), 1U);
  state.restore();
  EXPECT_EQ(steps, 0) << "the refused commits have copied nothing";
  sampler.reset();
  sampler.next(5), sampler.deliver();
  EXPECT_EQ(sampler.round().all, 5U);
  sampler.record();
  state.commit();
  EXPECT_EQ(state.commits(), 2U);
}

TEST(StateOf, FrozenParametersAreRestoredAndThoseOfTheSource) {
  on_ranks(2, [&](const Group& group) {
    const auto model = std::make_shared<Net>();
    const auto trained = [&] {
      std::vector<std::string> names;
      for (const auto& entry : model->named_parameters())
        if (entry.value().requires_grad()) names.push_back(entry.key());
      return names;
    };
    const auto all = trained();
    State state;
    state.add("model", model);
    if (group.rank() == 0) model->first->weight.requires_grad_(false);
    model->last->bias.requires_grad_(group.rank() == 1);
    EXPECT_EQ(state.sync(group), 0);
    const auto of_source = trained();
    EXPECT_EQ(of_source.size(), all.size() - 2);
    for (const char* const name : {"first.weight", "last.bias"})
      EXPECT_EQ(std::count(of_source.begin(), of_source.end(), name), 0);
    model->first->weight.requires_grad_(true);
    state.commit();
    const auto committed = trained();
    model->middle->weight.requires_grad_(false);
    model->last->bias.requires_grad_(true);
    state.restore();
    EXPECT_EQ(trained(), committed);
  });
}

TEST(StateOf, PartsOfARankAreNotSynchronized) {
  on_ranks(2, [&](const Group& group) {
    std::int64_t shared = group.rank(), own = 10 + group.rank();
    at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(group.rank()));
    State state;
    state.add("shared", shared).add("own", own, Scope::rank).add("generator", generator);
    EXPECT_EQ(state.sync(group), 0);
    EXPECT_EQ(shared, 0);
    EXPECT_EQ(own, 10 + group.rank());
    EXPECT_EQ(generator.current_seed(), 0U);
    shared = own = 5;
    state.restore();
    EXPECT_EQ(shared, 0);
    EXPECT_EQ(own, 10 + group.rank());
  });
}

TEST(StateOf, EveryNthCallCommits) {
  std::int64_t value = 0;
  State state;
  state.add("value", value);
  for (value = 1; value <= 7; ++value) state.commit_every(3);
  EXPECT_EQ(state.commits(), 2U);
  state.restore();
  EXPECT_EQ(value, 6);
}

// check() also throws a change. It commits first, so that all ranks have the state at the change.
TEST(StateOf, ACheckCommitsOnlyIfWorkersChange) {
  std::int64_t value = 1;
  bool change = false;
  State state;
  state.add("value", value);
  detail::StateAccess(state).set_votes([&](Vote own) { return Vote{.change = change, .veto = own.veto}; });
  state.check();
  EXPECT_EQ(state.commits(), 0U);
  change = true;
  EXPECT_THROW(state.check(), WorkersChanged);
  EXPECT_THROW(state.commit(), WorkersChanged);
  EXPECT_EQ(state.commits(), 2U);
  value = 2;
  state.restore();
  EXPECT_EQ(value, 1);
}

// A rewind reverts only the changes by forward and by the loop since the last step. It copies no parameters.
TEST(StateOf, AFailureRestoresTheStateAfterTheLastStep) {
  torch::nn::BatchNorm1d norm(3);
  torch::optim::SGD optimizer(norm->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
  at::Generator generator = at::detail::createCPUGenerator(4);
  at::Tensor tensor = at::zeros({2});
  ElasticSampler sampler(20, {.seed = 2});
  sampler.set_ranks(0, 1);
  std::int64_t steps = 0;
  State state;
  state.add("norm", norm).add("optimizer", optimizer).add("generator", generator).add("sampler", sampler);
  state.add("steps", steps).add("tensor", tensor);
  const auto forward = [&] {
    optimizer.zero_grad();
    sampler.next(4), sampler.deliver();
    tensor.add_(1);
    norm->forward(at::randn({4, 3}, generator)).square().sum().backward();
  };
  const auto apply = [&] {
    optimizer.step();
    sampler.record();
    ++steps;
  };
  state.commit();
  for (int step = 0; step < 2; ++step) {
    forward();
    EXPECT_TRUE(state.step(apply));
  }
  EXPECT_EQ(state.commits(), 3U);
  const at::Tensor weight = norm->weight.detach().clone(), mean = norm->running_mean.clone();
  const at::Tensor momentum =
      static_cast<torch::optim::SGDParamState&>(*optimizer.state().begin()->second).momentum_buffer().clone();
  const at::Tensor next = at::randn({4, 3}, generator.clone());
  forward();
  EXPECT_FALSE(at::equal(norm->running_mean, mean));
  steps = 17;
  optimizer.param_groups()[0].options().set_lr(7);
  detail::StateAccess(state).recover();
  EXPECT_EQ(state.commits(), 3U);
  EXPECT_TRUE(at::equal(norm->weight, weight));
  EXPECT_TRUE(at::equal(norm->running_mean, mean));
  EXPECT_TRUE(at::equal(at::randn({4, 3}, generator), next));
  EXPECT_TRUE(at::equal(
      static_cast<torch::optim::SGDParamState&>(*optimizer.state().begin()->second).momentum_buffer(),
      momentum));
  EXPECT_FALSE(norm->weight.grad().defined());
  EXPECT_EQ(optimizer.param_groups()[0].options().get_lr(), 0.5);
  EXPECT_EQ(sampler.progress().processed, 8U);
  EXPECT_EQ(steps, 2);
  EXPECT_EQ(tensor[0].item<float>(), 2);
  state.restore();  // to the commit before both steps
  EXPECT_EQ(state.commits(), 1U);
  EXPECT_EQ(steps, 0);
  EXPECT_FALSE(at::equal(norm->weight, weight));
}

// If applying a step fails, the parameters are inconsistent, and the last full copy is restored.
TEST(StateOf, APartlyAppliedStepRestoresTheLastCommit) {
  std::int64_t value = 1;
  State state;
  state.add("value", value);
  state.commit();
  state.step([&] { value = 2; });
  EXPECT_THROW(state.step([&] {
    value = 3;
    throw std::runtime_error("in the middle");
  }),
               std::runtime_error);
  detail::StateAccess(state).recover();
  EXPECT_EQ(value, 1);
  EXPECT_EQ(state.commits(), 1U);
}

// Rank 1 does not learn how the vote has ended, because the group has failed. The others have applied the
// step.
TEST(StateOf, ARankWithoutTheResultOfTheVoteGetsTheStepOfTheOthers) {
  on_ranks(3, [&](const Group& group) {
    Trainer trainer(kinds[0]);
    trainer.state.sync(group);
    for (int step = 0; step < 3; ++step) trainer.state.step([&] { trainer.step(step); });
    detail::StateAccess access(trainer.state);
    access.set_votes([&](Vote own) {
      if (group.rank() == 1) throw rpc::Error(ErrorKind::peer_lost, "in the vote");
      return own;
    });
    const auto error = error_of([&] { trainer.state.step([&] { trainer.step(3); }); });
    EXPECT_EQ(error.has_value(), group.rank() == 1);
    access.set_votes(nullptr);
    access.recover();
    EXPECT_EQ(trainer.steps, group.rank() == 1 ? 3 : 4);
    EXPECT_EQ(trainer.state.sync(group), 0);
    trainer.state.step([&] { trainer.step(4); });
    Trainer alone(kinds[0]);
    for (int step = 0; step < 5; ++step) alone.step(step);
    expect_close(values_of(*trainer.model), values_of(*alone.model), 0);
    EXPECT_EQ(trainer.steps, 5);
    EXPECT_EQ(trainer.state.commits(), 5U);
    EXPECT_EQ(trainer.state.sync(group), std::nullopt);
  });
}

TEST(StateOf, AStepIsAppliedUnlessARankVetoesAndBeforeAChange) {
  std::int64_t value = 0;
  State state;
  state.add("value", value);
  EXPECT_FALSE(state.step([&] { ++value; }, false));
  bool veto = true;
  detail::StateAccess(state).set_votes([&](Vote) { return Vote{.change = true, .veto = veto}; });
  EXPECT_FALSE(state.step([&] { ++value; }));
  EXPECT_EQ(value, 0);
  EXPECT_EQ(state.commits(), 0U);
  veto = false;
  EXPECT_THROW(state.step([&] { ++value; }), WorkersChanged);
  EXPECT_EQ(value, 1);
  EXPECT_EQ(state.commits(), 1U);
}

// A sync writes the parts one after the other. If it fails, all parts are restored to the same step.
TEST(StateOf, AFailedSyncRestoresTheStateBefore) {
  struct Failing : StatePart {
    std::string kind() const override { return "failing"; }
    void commit() override {}
    void restore() override {}
    void sync(const Group&, int) override {
      if (fails) throw rpc::Error(ErrorKind::peer_lost, "in the sync");
    }
    bool fails = false;
  };
  for (const Kind& kind : kinds) {
    on_ranks(2, [&](const Group& group) {
      Trainer trainer(kind);
      auto failing = std::make_shared<Failing>();
      trainer.state.add("failing", failing);
      trainer.state.sync(group);
      for (int step = 0; step < 3; ++step) trainer.state.step([&] { trainer.step(step); });
      if (group.rank() == 0) trainer.state.step([&] { trainer.step(3); });
      failing->fails = true;
      EXPECT_TRUE(error_of([&] { trainer.state.sync(group); }).has_value());
      detail::StateAccess(trainer.state).recover();
      EXPECT_EQ(trainer.steps, group.rank() == 0 ? 4 : 3);
      for (auto step = static_cast<int>(trainer.steps); step < 6; ++step) trainer.step(step);
      Trainer alone(kind);
      for (int step = 0; step < 6; ++step) alone.step(step);
      expect_close(values_of(*trainer.model), values_of(*alone.model), 0);
    });
  }
}

TEST(StateOf, AllRanksCountCommitsFromASync) {
  on_ranks(2, [&](const Group& group) {
    std::int64_t value = 0;
    State state;
    state.add("value", value);
    state.sync(group);
    if (group.rank() == 0)
      for (int i = 0; i < 2; ++i) state.commit_every(3);
    state.sync(group);
    for (int i = 0; i < 2; ++i) state.commit_every(3);
    EXPECT_EQ(state.commits(), 0U);
    state.commit_every(3);
    EXPECT_EQ(state.commits(), 1U);
  });
}

// Rank 1 joins after the last step: the body ends while its state is in transit.
TEST(StateOf, AStateThatArrivesAtTheEndIsKept) {
  on_ranks(2, [&](const Group& group) {
    const Group alone = group.split(group.rank()).get().value();
    Trainer trainer(kinds[0]);
    ElasticSampler sampler(12);
    trainer.state.add("sampler", sampler);
    detail::StateAccess access(trainer.state);
    access.begin(/*sends_later=*/true);
    if (group.rank() == 0) {
      access.begin_generation(1);
      trainer.state.sync(alone);
      for (int step = 0; step < 3; ++step) trainer.state.step([&] { trainer.step(step); });
    }
    access.begin_generation(2);
    EXPECT_EQ(trainer.state.sync(group), 0);
    access.end_body();
    access.recover();  // another rank has failed in the last barrier
    EXPECT_EQ(trainer.state.commits(), 3U);
    Trainer expected(kinds[0]);
    for (int step = 0; step < 3; ++step) expected.step(step);
    expect_close(values_of(*trainer.model), values_of(*expected.model), 0);
  });
}

// Rank 0 takes rank 1 for dead and trains alone in generation 2, while rank 1 still commits in generation 1.
TEST(StateOf, ARankThatMissedAGenerationGetsTheStateOfTheOthers) {
  on_ranks(2, [&](const Group& group) {
    const Group alone = group.split(group.rank()).get().value();
    std::int64_t value = 1;
    State state;
    state.add("value", value);
    detail::StateAccess access(state);
    access.begin_generation(1);
    state.sync(group);
    state.commit();
    if (group.rank() == 0) {
      access.begin_generation(2);
      state.sync(alone);
    }
    value = 10 + group.rank();
    state.commit();
    access.begin_generation(3);
    EXPECT_EQ(state.sync(group), 0);
    EXPECT_EQ(value, 10);
    EXPECT_EQ(state.sync(group), std::nullopt);
  });
}

TEST(StateOf, RanksWithDifferentPartsLearnTheFirstDifference) {
  on_ranks(2, [&](const Group& group) {
    std::int64_t number = 0;
    double real = 0;
    State state;
    state.add("epoch", number);
    if (group.rank() == 0) {
      state.add("rate", real);
    } else {
      state.add("rate", number);
    }
    test::expect_error([&] { return state.sync(group); }, ErrorKind::failed_precondition,
                       "rank 0 has rate (");
  });
}

TEST(TensorMemoryOf, IsReused) {
  const at::Tensor live = at::ones({4}), strided = at::ones({3, 2}).t();
  at::Tensor copy = detail::copy_into({}, strided);
  EXPECT_EQ(copy.strides(), strided.strides());
  copy = detail::copy_into({}, live);
  const void* const memory = copy.data_ptr();
  live.fill_(2);
  EXPECT_EQ(copy[0].item<float>(), 1);
  copy = detail::copy_into(copy, live);
  EXPECT_EQ(copy.data_ptr(), memory);
  EXPECT_EQ(copy[0].item<float>(), 2);
  EXPECT_NE(detail::copy_into(copy, at::ones({5})).data_ptr(), memory);
  EXPECT_FALSE(detail::copy_into(copy, {}).defined());
}

TEST(TensorMemoryOf, CopiesTensorsOfEveryForm) {
  const auto complex = [] { return at::randn({3, 2}, at::kComplexFloat); };
  const std::pair<const char*, at::Tensor> tensors[] = {
      {"large", at::randn({600, 1000})},
      {"transposed", at::randn({3, 2}).t()},
      {"with gaps", at::randn({4, 4}).narrow(1, 1, 2)},
      {"conjugate", at::conj(complex())},
      {"negative", at::imag(at::conj(complex()))},
      {"half", at::randn({5}).to(at::kHalf)},
      {"empty", at::empty({0, 3})},
  };
  for (const auto& [name, live] : tensors) {
    SCOPED_TRACE(name);
    const at::Tensor before = live.clone();
    detail::TensorMemory memory;
    for (int time = 0; time < 2; ++time) memory.store({live});
    const auto version = live._version();
    live.neg_();
    const at::Tensor after = live.clone();
    memory.load({live});
    EXPECT_TRUE(at::equal(live, before));
    EXPECT_GT(live._version(), version + 1);
    memory.load({after});
    EXPECT_TRUE(at::equal(after, before));
  }
  const at::Tensor whole = at::zeros({4, 4}), from = at::ones({4, 4}).narrow(1, 1, 2);
  detail::copy_into(whole.narrow(1, 1, 2), from);
  EXPECT_EQ(whole.sum().item<float>(), 8);
  EXPECT_TRUE(at::equal(whole.narrow(1, 1, 2), from));
}

}  // namespace state_test
}  // namespace weft::elastic

// Pipelines that lose a worker. A spare worker builds the stages, all stages get the last commit, and the
// steps since then are repeated. The result has the same bits as without a loss.
#include <weft/dist_optim/distributed_optimizer.h>
#include <weft/parallel/pipeline/remote/internal/pipeline_service.h>

#include <atomic>
#include <latch>
#include <optional>
#include <ostream>
#include <thread>

#include "tests/parallel/pipeline/remote/remote_support.h"

namespace weft::pipeline::pipeline_commit_test {
namespace {

using namespace remote_support;

void expect_same(const State& a, const State& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
}

struct Kind {
  std::string name;
  schedule::Schedule schedule;
  dist_optim::OptimizerSpec optimizer;
  bool by_stages = false;  // step their own parameters; otherwise a DistributedOptimizer does
};
void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// A pipeline over the first workers, and its optimizer.
class Training {
 public:
  Training(Agents& agents, const Kind& kind)
      : agents_(agents), kind_(kind), pipeline([&] {
          std::vector<rpc::Peer> workers = agents.workers();
          workers.erase(workers.begin() + static_cast<std::ptrdiff_t>(kind.schedule.ranks.size()),
                        workers.end());
          PipelineOptions options{
              .cuts = one_block_each(kind.schedule.stages()), .schedule = kind.schedule, .seed = 1};
          if (kind.by_stages) options.optimizer = kind.optimizer;
          return got(Pipeline::create(agents.driver(), workers, options));
        }()) {
    make_optimizer();
  }
  double step(int number) {
    PipelineStep result = got(forward_and_backward(number));
    if (optimizer) got(optimizer->step(result.pass));
    return result.loss.item<double>();
  }
  rpc::Future<PipelineStep> forward_and_backward(int number) {
    const auto seed = static_cast<std::uint64_t>(number);
    return pipeline.step(numbers({8, 6}, 100 + seed), numbers({8, 6}, 200 + seed));
  }
  void restore(const PipelineCommit& commit, const std::map<int, rpc::Peer>& replaced) {
    got(pipeline.restore(commit, replaced));
    make_optimizer();
  }
  std::vector<double> run(int from, int to) {
    std::vector<double> losses;
    for (int number = from; number < to; ++number) losses.push_back(step(number));
    return losses;
  }

 private:
  void make_optimizer() {
    if (!kind_.by_stages)
      optimizer.emplace(agents_.driver(), kind_.optimizer, dist_optim::synchronous, pipeline.modules());
  }
  Agents& agents_;
  const Kind kind_;

 public:
  Pipeline pipeline;
  std::optional<dist_optim::DistributedOptimizer> optimizer;
};

// Kills the worker that computes `stage`, in forward number `at` of that stage, counted from arm().
class Killer {
 public:
  Killer(int stage, int at) : stage_(stage), at_(at) {}
  void arm() { armed_ = true; }
  OnForward on_forward() {
    return [this](int stage) {
      if (stage != stage_ || !armed_ || calls_++ != at_) return;
      reached_.count_down();
      lost_.wait();
    };
  }
  rpc::Error kill_in(rpc::Future<PipelineStep> step, Agents& agents, std::size_t worker) {
    reached_.wait();
    std::thread killer([&] { agents.kill(worker); });
    const auto error = error_of([&] { got(std::move(step)); });
    lost_.count_down();
    killer.join();
    return error.value_or(rpc::Error(ErrorKind::internal, "the step did not fail"));
  }

 private:
  const int stage_, at_;
  std::atomic<bool> armed_ = false;
  std::atomic<int> calls_ = 0;
  std::latch reached_{1}, lost_{1};
};

const dist_optim::OptimizerSpec momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
const dist_optim::OptimizerSpec adam = torch::optim::AdamOptions(0.01);

class LostWorkers : public ::testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(
    Kinds, LostWorkers,
    ::testing::Values(
        Kind{"a_distributed_optimizer", schedule::one_forward_one_backward({.ranks = 2, .microbatches = 4}),
             momentum},
        Kind{"two_stages_on_a_rank", schedule::interleaved({.ranks = 2, .microbatches = 4, .chunks = 2}),
             adam},
        Kind{"optimizers_of_the_stages", schedule::zb_h1({.ranks = 2, .microbatches = 4}), momentum, true},
        // Stages step in the middle of a pipeline's step. The other stage has made those of the lost one.
        Kind{"pipedream", schedule::pipedream({.ranks = 2, .microbatches = 4}), adam, true}),
    [](const auto& info) { return info.param.name; });

TEST_P(LostWorkers, AreReplacedAndTheStepsAreRepeated) {
  const Kind& kind = GetParam();
  const int stages = kind.schedule.stages();
  std::vector<double> expected;
  State expected_state;
  {
    Agents agents(2, {.layers = [&] { return blocks(stages); }, .loss = squares});
    Training training(agents, kind);
    expected = training.run(0, 6);
    expected_state = state_of(training.pipeline);
  }
  for (const int rank : {0, 1}) {
    SCOPED_TRACE("rank " + std::to_string(rank));
    Killer killer(rank, 2);
    Agents agents(3, {.layers = [&] { return blocks(stages, killer.on_forward()); }, .loss = squares});
    Training training(agents, kind);
    std::vector<double> losses = training.run(0, 2);
    const PipelineCommit commit = got(training.pipeline.commit());
    EXPECT_EQ(training.step(2), expected[2]);
    killer.arm();
    const std::string worker = "worker" + std::to_string(rank + 1);
    const rpc::Error error = killer.kill_in(training.forward_and_backward(3), agents, rank + 1U);
    EXPECT_NE(std::string(error.what()).find(worker), std::string::npos) << error.what();
    EXPECT_EQ(got(training.pipeline.lost()), std::vector<int>{rank});
    training.restore(commit, {{rank, agents.workers()[2]}});
    for (const double loss : training.run(2, 6)) losses.push_back(loss);
    EXPECT_EQ(losses, expected);
    expect_same(state_of(training.pipeline), expected_state);
  }
}

const Kind simple{"simple", schedule::one_forward_one_backward({.ranks = 2, .microbatches = 4}), momentum};

// The worker is lost after the backward: some stages, or none, have made the optimizer's step.
TEST(PipelineCommit, SurvivesALossBeforeTheOptimizersStep) {
  Agents agents(3, {.layers = [] { return blocks(2); }, .loss = squares});
  Training training(agents, simple);
  training.step(0);
  const PipelineCommit commit = got(training.pipeline.commit());
  const std::vector<double> expected = training.run(1, 4);
  const State expected_state = state_of(training.pipeline);
  training.restore(commit, {});
  const PipelineStep step = got(training.forward_and_backward(1));
  agents.kill(2);
  EXPECT_TRUE(error_of([&] { got(training.optimizer->step(step.pass)); }));
  training.restore(commit, {{1, agents.workers()[2]}});  // the pass is still held
  EXPECT_EQ(training.run(1, 4), expected);
  expect_same(state_of(training.pipeline), expected_state);
}

TEST(PipelineCommit, CanBeRestoredOnTheSameWorkers) {
  for (const bool by_stages : {false, true}) {
    Kind kind = simple;
    kind.by_stages = by_stages;
    Agents agents(2, {.layers = [] { return blocks(2); }, .loss = squares});
    Training training(agents, kind);
    const PipelineCommit first = got(training.pipeline.commit());  // the optimizer has no state yet
    const State first_state = state_of(training.pipeline);
    const std::vector<double> losses = training.run(0, 2);
    got(training.pipeline.train(false));
    const PipelineCommit second = got(training.pipeline.commit());
    const State second_state = state_of(training.pipeline);
    got(training.pipeline.train());
    got(training.pipeline.restore(first));
    expect_same(state_of(training.pipeline), first_state);
    EXPECT_EQ(training.run(0, 2), losses);
    expect_same(state_of(training.pipeline), second_state);
    got(training.pipeline.restore(second));
    EXPECT_FALSE(got(dist_autograd::RemoteModule(training.pipeline.stages()[1]).is_training()));
  }
}

TEST(PipelineCommit, ReleasesThePassesOfEarlierSteps) {
  Agents agents(2, {.layers = [] { return blocks(2); }, .loss = squares});
  Training training(agents, simple);
  const PipelineCommit commit = got(training.pipeline.commit());
  const PipelineStep before = got(training.forward_and_backward(0));
  got(training.pipeline.restore(commit));
  EXPECT_EQ(test::kind_of([&] { got(training.optimizer->step(before.pass)); }), ErrorKind::aborted);
  training.step(0);
}

TEST(PipelineCommit, IncludesTheRandomGeneratorsOfTheWorkers) {
  const auto model = [] {
    LayerGraph layers;
    layers.add("linear", [] { return torch::nn::Linear(torch::nn::LinearOptions(6, 6)); });
    layers.add("dropout", [] { return torch::nn::Dropout(0.5); });
    return layers;
  };
  Agents agents(1, {.layers = model, .loss = squares});
  Pipeline pipeline =
      got(Pipeline::create(agents.driver(), agents.workers(),
                           {.cuts = {}, .schedule = schedule::fill_drain({.ranks = 1, .microbatches = 2})}));
  const at::Tensor x = at::ones({8, 6}), y = at::zeros({8, 6});
  const PipelineCommit commit = got(pipeline.commit());
  const double loss = got(pipeline.step(x, y)).loss.item<double>();
  EXPECT_NE(got(pipeline.step(x, y)).loss.item<double>(), loss);
  got(pipeline.restore(commit));
  EXPECT_EQ(got(pipeline.step(x, y)).loss.item<double>(), loss);
}

// A worker that is taken for lost, and is not.
TEST(PipelineCommit, AReplacedWorkerTakesNoPartInLaterSteps) {
  Agents agents(3, {.layers = [] { return blocks(2); }, .loss = squares});
  Training training(agents, simple);
  const PipelineCommit commit = got(training.pipeline.commit());
  EXPECT_EQ(got(training.pipeline.lost()), std::vector<int>{});
  training.restore(commit, {{0, agents.workers()[2]}});
  training.step(0);
  test::eventually("the worker has no stages", [&] { return agents.stages_of(1) == 0; });
  EXPECT_EQ(agents.stages_of(3), 1U);
}

TEST(PipelineCommit, RefusesInvalidArguments) {
  Agents agents(3, {.layers = [] { return blocks(2); }, .loss = squares});
  Training training(agents, simple);
  const PipelineCommit commit = got(training.pipeline.commit());
  const auto refused = [&](PipelineCommit given, std::map<int, rpc::Peer> replaced) {
    return test::message_of([&] { got(training.pipeline.restore(std::move(given), std::move(replaced))); });
  };
  EXPECT_EQ(refused(commit, {{0, agents.workers()[1]}}),
            "Pipeline::restore: two ranks have the worker worker2, expected one agent for each rank");
  EXPECT_EQ(refused(commit, {{2, agents.workers()[2]}}),
            "Pipeline::restore: a worker for rank 2, expected one of 2 ranks");
  EXPECT_EQ(refused({}, {}), "Pipeline::restore: a commit of 0 stages, expected 2");
  PipelineCommit swapped = commit;
  std::swap(swapped.stages[0], swapped.stages[1]);
  EXPECT_NE(refused(swapped, {}).find("block"), std::string::npos) << refused(swapped, {});
  training.step(0);
}

}  // namespace
}  // namespace weft::pipeline::pipeline_commit_test

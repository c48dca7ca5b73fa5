#include <weft/parallel/elastic/pipeline/elastic_pipeline.h>

#include <weft/parallel/schedule/generators.h>

#include <set>

#include "tests/parallel/elastic/training.h"

namespace weft::elastic {
namespace elastic_pipeline_test {

using namespace testing;
using Names = std::vector<std::string>;

const auto squares = pipeline::loss_of(
    [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); });
const auto momentum = torch::optim::SGDOptions(0.05).momentum(0.9);
constexpr std::int64_t steps = 12;

// Two stages. Workers begin with different values, according to the seed.
pipeline::LayerGraph layers(std::uint64_t seed) {
  pipeline::LayerGraph model;
  const auto linear = [seed](std::int64_t in, std::int64_t out) {
    return [=] {
      torch::nn::Linear made(torch::nn::LinearOptions(in, out));
      made->to(at::kDouble);
      const at::NoGradGuard no_grad;
      const auto generator = at::detail::createCPUGenerator(seed + static_cast<std::uint64_t>(in));
      for (at::Tensor& parameter : made->parameters()) parameter.normal_(0, 0.3, generator);
      return made;
    };
  };
  model.add("up", linear(4, 8));
  model.add("tanh", [] { return torch::nn::Tanh(); });
  model.add("down", linear(8, 1));
  return model;
}
at::Tensor inputs(std::int64_t step) {
  return at::randn({12, 4}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + step)),
                   at::kDouble);
}
at::Tensor targets(std::int64_t step) { return inputs(step).sum(1, true).tanh(); }
pipeline::GroupPipelineOptions options() { return {.loss = squares, .optimizer = momentum}; }
const auto computations = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 3});

// The results of one step on a rank of a pipeline.
struct Computed {
  std::uint64_t generation = 0;
  int pipelines = 0;
  std::map<int, double> losses = {};  // by pipeline
};

struct Worker {
  Worker(const test::JobStore& store, const std::string& name, std::size_t number)
      : job(worker_options(store, name, number), training_layers()),
        model(layers(number), {.cuts = {2}}, computations, options()) {}
  rpc::Job job;
  rpc::Agent& agent = job.agent();
  ElasticPipeline model;
  std::int64_t step = 0;
  std::vector<Change> changes;  // its thread's, until end()
  std::function<void(std::int64_t step, const Group&)> before_step;
  std::set<const pipeline::GroupPipeline*> trained;  // which objects have trained
  WorkerThread thread;
};

class ElasticPipelines : public ::testing::Test {
 protected:
  ~ElasticPipelines() override {
    while (workers.size() > 1) workers.pop_back();  // the first one keeps the store
  }
  Worker& worker(const std::string& name) {
    return *workers.emplace_back(std::make_unique<Worker>(*store, name, workers.size()));
  }
  void start(Worker& worker, RunOptions run_options, int copies = 1) {
    run_options.on_change = [&worker](const Change& change) { worker.changes.push_back(change); };
    worker.thread.start([this, &worker, run_options, copies] {
      const auto part = worker.model.part({.copies = copies});
      State state;
      state.add("stages", part).add("step", worker.step);
      run(worker.job, state, [&](const Group& group) { train(worker, group, state); }, run_options);
    });
  }
  void train(Worker& worker, const Group& group, State& state) {
    ElasticPipeline& model = worker.model;
    for (; worker.step < steps; state.commit_every(2)) {
      if (worker.before_step) worker.before_step(worker.step, group);
      if (model.has_stages()) {
        const int count = model.pipelines(), own = model.place().pipeline;
        const auto part = [&](const at::Tensor& all) { return at::tensor_split(all, count)[own]; };
        const auto step = model.pipeline().step({part(inputs(worker.step))}, {part(targets(worker.step))});
        worker.trained.insert(&model.pipeline());
        const std::lock_guard lock(mutex);
        Computed& computed = log[worker.step];
        if (computed.generation != worker.changes.back().generation)
          computed = {worker.changes.back().generation, count};
        computed.losses[own] = step.loss.item<double>();
      }
      ++worker.step;
    }
  }
  static void end(Worker& worker) { worker.thread.end(); }
  // The worker's agent dies during training, without an announcement.
  static void dies_at(Worker& worker, std::int64_t step) {
    worker.before_step = [&worker, step](std::int64_t now, const Group&) {
      if (now == step) die(worker.agent);
    };
  }
  // Losses and parameters are those of one process that trains with all rows of each step.
  void expect_undisturbed(double tolerance = 1e-10) {
    const pipeline::StageGraph whole = pipeline::cut(layers(0), {});
    torch::optim::SGD optimizer(whole.parameters(), momentum);
    ASSERT_EQ(log.size(), static_cast<std::size_t>(steps));
    for (const auto& [step, computed] : log) {
      optimizer.zero_grad();
      const at::Tensor loss = squares(whole[0].forward({inputs(step)}), {targets(step)});
      loss.backward();
      optimizer.step();
      ASSERT_EQ(computed.losses.size(), static_cast<std::size_t>(computed.pipelines)) << "step " << step;
      double mean = 0;
      for (const auto& [pipeline, own] : computed.losses) mean += own / computed.pipelines;
      EXPECT_NEAR(mean, loss.item<double>(), tolerance) << "step " << step;
    }
    const auto expected = whole[0].module->named_parameters();
    for (const auto& each : workers) {
      if (each->thread.failed() || !each->model.has_stages()) continue;
      const auto& graph = each->model.pipeline().graph();
      for (const auto& parameter : graph[each->model.place().rank].module->named_parameters())
        EXPECT_TRUE(at::allclose(parameter.value(), expected[parameter.key()], tolerance, tolerance))
            << each->agent.name() << ": " << parameter.key();
    }
  }
  int places_with_stages() const {
    return static_cast<int>(std::count_if(workers.begin(), workers.end(), [](const auto& each) {
      return !each->thread.failed() && each->model.has_stages();
    }));
  }

  std::unique_ptr<test::InProcessJobStore> store = std::make_unique<test::InProcessJobStore>();
  std::mutex mutex;
  std::map<std::int64_t, Computed> log;
  std::vector<std::unique_ptr<Worker>> workers;
};

// One pipeline is left, and one worker without a place. The stages are on their workers, so no stage is
// built.
TEST_F(ElasticPipelines, TrainingContinuesWithFewerPipelines) {
  for (const std::string name : {"anna", "bert", "cleo", "dora"}) worker(name);
  dies_at(*workers[1], 7);
  for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 4}});
  EXPECT_THROW(end(*workers[1]), Died);
  for (const int survivor : {0, 2, 3}) end(*workers[survivor]);
  expect_undisturbed();
  EXPECT_EQ(log.at(5).pipelines, 2);
  EXPECT_EQ(log.at(6).pipelines, 1);  // two pipelines computed the step, and it was lost
  EXPECT_EQ(workers[0]->changes.back().gone, Names{"bert"});
  EXPECT_EQ(places_with_stages(), 2);
  for (const int survivor : {0, 2, 3}) EXPECT_EQ(workers[survivor]->trained.size(), 1U);
}

// The other pipeline has the state of the stage that was lost.
TEST_F(ElasticPipelines, ASpareTakesALostStageFromAReplica) {
  for (const std::string name : {"anna", "bert", "cleo", "dora", "emil"}) worker(name);
  dies_at(*workers[2], 7);
  for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 5}}, 0);
  EXPECT_THROW(end(*workers[2]), Died);
  for (const int survivor : {0, 1, 3, 4}) end(*workers[survivor]);
  expect_undisturbed();
  for (const auto& [step, computed] : log) EXPECT_EQ(computed.pipelines, 2);
  EXPECT_EQ(workers[4]->model.place(), (PipelinePlace{1, 0}));
}

// One pipeline and a spare. The spare has a copy of the lost stage's commit, or gets it from the previous
// rank. The results have the same bits as without a loss.
TEST_F(ElasticPipelines, ASpareTakesALostStageFromACopyBitForBit) {
  const auto losses = [&](std::optional<std::size_t> dies) {
    log.clear();
    for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
    if (dies) dies_at(*workers[*dies], 7);
    for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 3}});
    std::vector<double> measured;
    for (std::size_t number = 0; number < workers.size(); ++number) {
      if (number == dies) {
        EXPECT_THROW(end(*workers[number]), Died);
      } else {
        end(*workers[number]);
      }
    }
    expect_undisturbed();
    for (const auto& [step, computed] : log) measured.push_back(computed.losses.at(0));
    EXPECT_EQ(workers[2]->model.has_stages(), dies.has_value());
    while (!workers.empty()) workers.pop_back();
    store = std::make_unique<test::InProcessJobStore>();
    return measured;
  };
  const std::vector<double> undisturbed = losses(std::nullopt);
  EXPECT_EQ(losses(1), undisturbed);
}

TEST_F(ElasticPipelines, WorkersThatJoinFormAPipeline) {
  for (const std::string name : {"anna", "bert", "cleo", "dora"}) worker(name);
  workers[0]->before_step = [&](std::int64_t step, const Group& group) {
    if (step != 3 || group.size() != 2) return;
    for (const int joins : {2, 3}) start(*workers[joins], {.workers = {.min = 2}});
    for (const char* const name : {"cleo", "dora"}) await_ready(workers[0]->job, name);
  };
  for (const int first : {0, 1}) start(*workers[first], {.workers = {.min = 2}});
  for (auto& each : workers) end(*each);
  expect_undisturbed();
  EXPECT_EQ(log.at(3).pipelines, 1);
  EXPECT_EQ(log.at(steps - 1).pipelines, 2);
}

// The other ranks wait in groups of the pipelines, which run() does not know.
TEST_F(ElasticPipelines, AFailureOfOneRankFailsTheStepOnAllRanks) {
  for (const std::string name : {"anna", "bert", "cleo", "dora"}) worker(name);
  bool failed = false;
  workers[2]->before_step = [&](std::int64_t step, const Group&) {
    if (step == 7 && !std::exchange(failed, true))
      throw rpc::Error(ErrorKind::unavailable, "the data's server is gone");
  };
  for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 4}});
  for (auto& each : workers) end(*each);
  expect_undisturbed();
  for (const auto& each : workers) EXPECT_EQ(each->changes.size(), 2U);
}

TEST_F(ElasticPipelines, ALostStageWithoutCopiesIsReported) {
  for (const std::string name : {"anna", "bert", "cleo"}) worker(name);
  dies_at(*workers[1], 7);
  for (auto& each : workers) start(*each, {.workers = {.min = 2, .start = 3}}, 0);
  EXPECT_THROW(end(*workers[1]), Died);
  for (const int survivor : {0, 2})
    test::expect_error([&] { end(*workers[survivor]); }, ErrorKind::failed_precondition,
                       "no worker has the shards of bert,");
}

TEST_F(ElasticPipelines, FewerWorkersThanStagesAreRefused) {
  start(worker("anna"), {});
  test::expect_error([&] { end(*workers[0]); }, ErrorKind::failed_precondition, "set WorkerLimits::min");
  EXPECT_EQ(test::kind_of([&] { workers[0]->model.pipeline(); }), ErrorKind::failed_precondition);
}

TEST_F(ElasticPipelines, RefusesOptionsThatItSetsItself) {
  const auto make = [](pipeline::CutOptions cut, pipeline::GroupPipelineOptions wanted) {
    return test::kind_of([&] { ElasticPipeline(layers(0), cut, computations, wanted); });
  };
  EXPECT_EQ(make({.cuts = {2}}, {.loss = squares}), ErrorKind::invalid_argument);
  EXPECT_EQ(make({.cuts = {2}, .built = std::set<int>{0}}, options()), ErrorKind::invalid_argument);
}

}  // namespace elastic_pipeline_test
}  // namespace weft::elastic

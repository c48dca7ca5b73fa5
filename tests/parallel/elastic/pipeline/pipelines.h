// A small pipeline of two stages that trains with the workers of an elastic job, and its replay in one
// process.
#pragma once

#include <weft/parallel/elastic/pipeline/elastic_pipeline.h>
#include <weft/parallel/schedule/generators.h>

#include <set>

#include "tests/parallel/elastic/training.h"

namespace weft::elastic {
namespace pipelines {

using namespace testing;
using Names = std::vector<std::string>;

inline const auto squares = pipeline::loss_of(
    [](const at::Tensor& output, const at::Tensor& target) { return at::mse_loss(output, target); });
inline const auto momentum = torch::optim::SGDOptions(0.05).momentum(0.9);
inline constexpr std::int64_t steps = 12;

// Two stages. Workers begin with different values, according to the seed.
inline pipeline::LayerGraph layers(std::uint64_t seed) {
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
inline at::Tensor inputs(std::int64_t step) {
  return at::randn({12, 4}, at::detail::createCPUGenerator(static_cast<std::uint64_t>(1000 + step)),
                   at::kDouble);
}
inline at::Tensor targets(std::int64_t step) { return inputs(step).sum(1, true).tanh(); }
inline pipeline::GroupPipelineOptions options() { return {.loss = squares, .optimizer = momentum}; }
inline const auto computations = schedule::one_forward_one_backward({.ranks = 2, .microbatches = 3});

// The results of one step on a rank of a pipeline.
struct Computed {
  std::uint64_t generation = 0;
  int pipelines = 0;
  std::map<int, double> losses = {};  // by pipeline
};

struct Worker {
  // detection: 0: the default.
  Worker(const test::JobStore& store, const std::string& name, std::size_t number,
         std::chrono::nanoseconds detection = {})
      : job(worker_options(store, name, number, detection), training_layers()),
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

// The training in one process, with all rows of each step.
struct Replay {
  Replay() {
    torch::optim::SGD optimizer(whole.parameters(), momentum);
    for (std::int64_t step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      const at::Tensor loss = squares(whole[0].forward({inputs(step)}), {targets(step)});
      loss.backward();
      optimizer.step();
      losses.push_back(loss.item<double>());
    }
  }
  // The name of a parameter of this worker's stage that differs; empty: none.
  std::string difference(const ElasticPipeline& model, double tolerance) const {
    if (!model.has_stages()) return "";
    const auto expected = whole[0].module->named_parameters();
    for (const auto& parameter : model.pipeline().graph()[model.place().rank].module->named_parameters())
      if (!at::allclose(parameter.value(), expected[parameter.key()], tolerance, tolerance))
        return parameter.key();
    return "";
  }
  const pipeline::StageGraph whole = pipeline::cut(layers(0), {});
  std::vector<double> losses;
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
    const Replay replay;
    ASSERT_EQ(log.size(), static_cast<std::size_t>(steps));
    for (const auto& [step, computed] : log) {
      ASSERT_EQ(computed.losses.size(), static_cast<std::size_t>(computed.pipelines)) << "step " << step;
      double mean = 0;
      for (const auto& [pipeline, own] : computed.losses) mean += own / computed.pipelines;
      EXPECT_NEAR(mean, replay.losses[static_cast<std::size_t>(step)], tolerance) << "step " << step;
    }
    for (const auto& each : workers)
      if (!each->thread.failed()) {
        EXPECT_EQ(replay.difference(each->model, tolerance), "") << each->agent.name();
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

}  // namespace pipelines
}  // namespace weft::elastic

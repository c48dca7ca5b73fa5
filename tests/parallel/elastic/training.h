// A small training that logs its samples, its replay in one process, and helpers that tests of elastic
// training share.
#pragma once

#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/distributed_data_parallel.h>
#include <weft/parallel/elastic/learning_rate_scale.h>
#include <weft/parallel/elastic/run.h>
#include <weft/rpc/job/store/store.h>
#include <weft/rpc/tensor/layers.h>

#include <torch/torch.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/job.h"

namespace weft::elastic::testing {

using collectives::Group;
using rpc::ErrorKind;

inline constexpr std::size_t dataset_size = 50;
inline constexpr std::size_t batch_size = 3;
inline constexpr std::int64_t epochs = 3;
// Small enough for batches of one sample, so that rounding differences do not grow in thousands of steps.
inline constexpr double learning_rate = 0.01;

struct Data {
  static at::Tensor draw(std::int64_t columns, std::uint64_t seed) {
    return at::randn({static_cast<std::int64_t>(dataset_size), columns}, at::detail::createCPUGenerator(seed),
                     at::kDouble);
  }
  at::Tensor x = draw(4, 1), y = draw(1, 2);

  static at::Tensor rows(const at::Tensor& of, const std::vector<std::size_t>& indices) {
    std::vector<std::int64_t> chosen(indices.begin(), indices.end());
    return of.index_select(0, at::tensor(chosen, at::kLong));
  }
};

struct Net : torch::nn::Module {
  explicit Net(std::uint64_t seed) {
    const auto generator = at::detail::createCPUGenerator(100 + seed);
    first = register_parameter("first", at::randn({4, 6}, generator, at::kDouble) * 0.3);
    second = register_parameter("second", at::randn({6, 1}, generator, at::kDouble) * 0.3);
  }
  at::Tensor forward(const at::Tensor& x) { return at::tanh(x.mm(first)).mm(second); }
  at::Tensor first, second;
};

// Gradual unfreezing. A worker that joins after step 4 has other parameters frozen than those that train.
inline void freeze_and_unfreeze(std::int64_t step, Net& model) {
  if (step == 0) model.first.requires_grad_(false);
  if (step == 2) model.first.requires_grad_(true);
  if (step == 4) model.second.requires_grad_(false);
  if (step == 10) model.second.requires_grad_(true);
}

// One step of a rank, as it is logged.
struct Step {
  std::int64_t step = 0, epoch = 0;
  std::uint64_t generation = 0;
  int rank = 0, ranks = 0;
  double loss = 0;  // the mean of its batch, weighted
  std::vector<std::size_t> indices;
};

// The training of one worker.
struct Trained {
  explicit Trained(std::uint64_t seed) : model(std::make_shared<Net>(seed)) {
    state.add("model", model).add("optimizer", optimizer).add("sampler", sampler);
    state.add("epoch", epoch).add("step", step);
  }

  void train(const Group& group, std::uint64_t generation) {
    data_parallel::DistributedDataParallel ddp{group, model, ddp_options};
    for (; more(group); ++epoch) {
      sampler.set_epoch(static_cast<std::uint64_t>(epoch));
      sampler.reset();
      while (const auto indices = sampler.next(batch_size)) {
        sampler.deliver();
        if (before_step) before_step(step, group);
        const Round round = sampler.round();
        optimizer.zero_grad();
        const at::Tensor loss =
            at::mse_loss(ddp.forward(Data::rows(data.x, *indices)), Data::rows(data.y, *indices)) *
            round.weight;
        Step done{step, epoch, generation, group.rank(), group.size(), loss.item<double>(), round.indices};
        done.indices.resize(round.own);
        log(done);  // before the collective: if one rank completes the step, all ranks have logged it
        loss.backward();
        const auto apply = [&] {
          if (scale) optimizer.param_groups()[0].options().set_lr(learning_rate * scale->next(group.size()));
          optimizer.step();
          sampler.record();
          ++step;
          if (after_step) after_step(done, group);
        };
        if (transactions) {
          state.step(apply);
        } else {
          apply();
          state.commit_every(commit_interval);
        }
      }
    }
  }

  const Data data;
  std::shared_ptr<Net> model;
  torch::optim::SGD optimizer{model->parameters(), torch::optim::SGDOptions(learning_rate).momentum(0.9)};
  ElasticSampler sampler{dataset_size, {.seed = 5}};
  std::int64_t epoch = 0, step = 0;
  State state;
  std::optional<LearningRateScale> scale;  // the test adds it to the state
  std::uint64_t commit_interval = 2;
  // Returns whether another epoch follows: equal on all ranks.
  std::function<bool(const Group&)> more = [this](const Group&) { return epoch < epochs; };
  data_parallel::Options ddp_options;
  bool transactions = false;  // steps instead of commits
  std::function<void(const Step&)> log;
  std::function<void(std::int64_t step, const Group&)> before_step;
  std::function<void(const Step&, const Group&)> after_step;
};

inline void expect_values(const Net& model, const at::Tensor& first, const at::Tensor& second) {
  EXPECT_TRUE(at::allclose(model.first, first, 1e-9, 1e-12));
  EXPECT_TRUE(at::allclose(model.second, second, 1e-9, 1e-12));
}
inline void expect_values(const Net& model, const Net& other) {
  expect_values(model, other.first, other.second);
}

// The logged steps of all ranks. If a step was lost and repeated, it has the ranks of the later generation.
class Log {
 public:
  void add(const Step& step) {
    const std::lock_guard lock(mutex_);
    auto& ranks = steps_[step.step];
    if (!ranks.empty() && ranks.front().generation < step.generation) ranks.clear();
    if (ranks.empty() || ranks.front().generation == step.generation) ranks.push_back(step);
  }

  // Trains in one process with the logged samples. Expects the losses and the final parameters of the ranks,
  // and each sample once per epoch. seed: of the initial model. scale: the scale before the first step, which
  // is called with the number of ranks in each step.
  void expect_replay(std::uint64_t seed, const Net& final_model,
                     std::optional<LearningRateScale> scale = {}) const {
    Net model(seed);
    expect_replay(model, epochs, scale);
    expect_values(model, final_model);
  }
  // before_step: called with the model before each step.
  void expect_replay(Net& model, std::int64_t expected_epochs = epochs,
                     std::optional<LearningRateScale> scale = {},
                     const std::function<void(std::int64_t step, Net& model)>& before_step = {}) const {
    const Data data;
    torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(learning_rate).momentum(0.9));
    std::map<std::int64_t, std::vector<std::size_t>> by_epoch;
    std::int64_t expected = 0;
    for (const auto& [number, ranks] : steps_) {
      ASSERT_EQ(number, expected++);
      ASSERT_EQ(ranks.size(), static_cast<std::size_t>(ranks.front().ranks)) << "step " << number;
      std::vector<std::size_t> indices;
      double loss_of_ranks = 0;
      for (const Step& step : ranks) {
        indices.insert(indices.end(), step.indices.begin(), step.indices.end());
        loss_of_ranks += step.loss / step.ranks;
      }
      auto& epoch = by_epoch[ranks.front().epoch];
      epoch.insert(epoch.end(), indices.begin(), indices.end());
      if (before_step) before_step(number, model);
      optimizer.zero_grad();
      const at::Tensor loss =
          at::mse_loss(model.forward(Data::rows(data.x, indices)), Data::rows(data.y, indices));
      loss.backward();
      if (scale)
        optimizer.param_groups()[0].options().set_lr(learning_rate * scale->next(ranks.front().ranks));
      optimizer.step();
      ASSERT_NEAR(loss.item<double>(), loss_of_ranks, 1e-9) << "step " << number;
    }
    EXPECT_EQ(by_epoch.size(), static_cast<std::size_t>(expected_epochs));
    std::vector<std::size_t> all(dataset_size);
    std::iota(all.begin(), all.end(), std::size_t{0});
    for (auto& [epoch, indices] : by_epoch) {
      std::sort(indices.begin(), indices.end());
      EXPECT_EQ(indices, all) << "epoch " << epoch;
    }
  }

  std::vector<Step> of_step(std::int64_t number) const { return steps_.at(number); }
  const Step& last() const { return steps_.rbegin()->second.front(); }
  std::int64_t size() const { return static_cast<std::int64_t>(steps_.size()); }
  // Drops attempts of steps that no generation completed, because the training ended with fewer steps.
  void drop_from(std::int64_t number) { steps_.erase(steps_.lower_bound(number), steps_.end()); }

 private:
  std::mutex mutex_;
  std::map<std::int64_t, std::vector<Step>> steps_;
};

inline rpc::Layers training_layers() {
  rpc::Layers layers = tensor::layers();
  layers.push_back(collectives::layer());
  return layers;
}

// The options of a worker of an elastic world. Worker number 0 is the first one, and keeps the store if the
// store needs a host. detection: the heartbeat's timeout; 0: the default.
inline rpc::MemberOptions worker_options(const test::JobStore& store, const std::string& name,
                                         std::size_t number, std::chrono::nanoseconds detection = {}) {
  rpc::MemberOptions options{{.name = name, .handler_threads = 1}};
  if (detection.count() > 0) options.heartbeat = {.interval = detection / 5, .timeout = detection};
  options.log = [](const rpc::LogRecord&) {};
  options.in_process = store.network;
  options.listen = {store.network == nullptr         ? "tcp://127.0.0.1:0"
                    : number == 0 && store.with_host ? store.url
                                                     : "inproc://" + name};
  options.rendezvous = {
      .store = store.url, .rank = number, .fixed_world = false, .lease = std::chrono::hours{1}};
  return options;
}

// How steps end: with commits, or with State::step(), and then perhaps with RunOptions::sync_later.
struct StepEnd {
  const char* name;
  bool steps, later;
};
inline void PrintTo(const StepEnd& end, std::ostream* out) { *out << end.name; }
inline constexpr StepEnd step_ends[] = {
    {"commits", false, false}, {"steps", true, false}, {"later", true, true}};

// The agent of a worker dies during a step, without an announcement.
struct Died {};
[[noreturn]] inline void die(rpc::Agent& agent) {
  agent.shut_down();
  throw Died();
}

// The thread in which a worker trains. It is the last member of the worker, so it ends before the others.
class WorkerThread {
 public:
  ~WorkerThread() {
    if (thread_.joinable()) thread_.join();
  }
  template <class F>
  void start(F f) {
    thread_ = std::thread([this, f = std::move(f)]() mutable {
      try {
        f();
      } catch (...) {
        error_ = std::current_exception();
      }
    });
  }
  bool started() const { return thread_.joinable(); }
  void end() {  // rethrows what f has thrown
    thread_.join();
    if (failed()) std::rethrow_exception(error_);
  }
  bool failed() const { return error_ != nullptr; }  // after end()

 private:
  std::exception_ptr error_;
  std::thread thread_;
};

// Blocks until the job's agent knows that another worker can take part in the next generation.
inline void await_ready(rpc::Job& job, const std::string& other) {
  job.store()->get("elastic/train/ready/" + other, {.timeout = std::chrono::seconds{60}}).get();
  for (auto watch = job.watch_members();;)
    for (const rpc::MemberEvent& event : watch->next().get(std::chrono::seconds{60}))
      if (event.member.name == other) return;
}

}  // namespace weft::elastic::testing

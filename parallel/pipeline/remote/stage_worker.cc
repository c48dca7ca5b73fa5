#include <weft/parallel/pipeline/remote/stage_worker.h>

#include <weft/parallel/pipeline/internal/rank_step.h>
#include <weft/parallel/pipeline/remote/pipeline_service.h>
#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/liveness.h>
#include <weft/rref/rref_layer.h>

#include <algorithm>
#include <utility>

namespace weft::pipeline {

using dist_autograd::PassState;
using rpc::Error;
using rpc::ErrorKind;

namespace {

// How many values an edge carries at a time, by edge and whether they are gradients.
std::map<std::pair<schedule::Edge, bool>, int> credits_of_edges(const schedule::Schedule& computations) {
  const auto liveness = schedule::liveness(schedule::place_communication(computations));
  std::map<std::pair<schedule::Edge, bool>, int> credits;
  for (const auto& rank : liveness.ranks)
    for (const schedule::Edge& edge : computations.edges) {
      const auto add = [&](schedule::Held held, bool gradient) {
        credits[{edge, gradient}] = std::max(credits[{edge, gradient}], rank.slots(held, edge) + 1);
      };
      add(schedule::Held::received_activation, false);
      add(schedule::Held::received_gradient, true);
    }
  return credits;
}

std::exception_ptr over_error(std::uint64_t step, const std::string& why) {
  return std::make_exception_ptr(
      Error(ErrorKind::aborted, "pipeline step " + std::to_string(step) + " is over: " + why));
}

}  // namespace

struct StageWorker::Step {
  explicit Step(std::uint64_t n) : number(n) {}

  const std::uint64_t number;
  const std::shared_ptr<ValueExchange> exchange = std::make_shared<ValueExchange>();
  std::shared_ptr<PassState> pass;
  StagePart part;                                       // the rank's
  std::map<int, rpc::Promise<StageReport>> asked = {};  // by stage; guarded by the worker's mutex

  std::mutex mutex;  // guards in_flight
  std::condition_variable used;
  std::map<std::pair<schedule::Edge, bool>, int> in_flight;  // values sent and not used yet
};

StageWorker::StageWorker(std::shared_ptr<rpc::AgentCore> core, const WorkerPlan& plan, StageGraph graph,
                         schedule::Schedule schedule, Loss loss)
    : core_(std::move(core)),
      id_(plan.pipeline),
      rank_(plan.rank),
      workers_(plan.workers),
      timeout_(plan.timeout_ns),
      mean_loss_(plan.mean_loss),
      graph_(std::move(graph)),
      schedule_(std::move(schedule)),
      loss_(std::move(loss)),
      devices_(plan.device.empty() ? 0 : plan.workers.size(),
               c10::Device(plan.device.empty() ? "cpu" : plan.device)),
      credits_(credits_of_edges(schedule_)) {
  for (int stage = 0; stage < graph_.size(); ++stage) {
    if (schedule_.rank_of(stage, 0) != rank_) continue;
    stages_.push_back(stage);
    if (!devices_.empty()) graph_[stage].module->to(devices_.front());
  }
}

StageWorker::~StageWorker() = default;

rpc::Future<StageReport> StageWorker::run(int stage, std::shared_ptr<PassState> pass, StagePart part) {
  rpc::Promise<StageReport> promise;
  auto future = promise.future();
  std::shared_ptr<Step> step;
  bool is_complete = false;
  {
    std::lock_guard lock(mutex_);
    if (ended_) {
      promise.fail(*ended_);
      return future;
    }
    step = step_of(part.step);
    if (step == nullptr) {
      promise.complete(over_error(part.step, "a later one has begun"));
      return future;
    }
    for (auto other = steps_.begin(); other->first < part.step; other = steps_.erase(other))
      other->second->exchange->fail(over_error(other->first, "a later one has begun"));
    over_ = part.step - 1;
    if (step->pass == nullptr) {
      step->pass = std::move(pass);
      step->part = {.step = part.step, .with_backward = part.with_backward, .rows = part.rows};
    }
    if (!part.inputs.empty()) step->part.inputs = std::move(part.inputs);
    if (!part.targets.empty()) step->part.targets = std::move(part.targets);
    step->asked.insert_or_assign(stage, std::move(promise));
    is_complete = step->asked.size() == stages_.size();
  }
  step->pass->on_end([exchange = step->exchange, number = step->number] {
    exchange->fail(over_error(number, "its pass has ended"));
  });
  if (is_complete) thread_.post([self = shared_from_this(), step] { self->execute(step); });
  return future;
}

std::shared_ptr<StageWorker::Step> StageWorker::step_of(std::uint64_t number) {
  if (number <= over_) return nullptr;
  auto& step = steps_[number];
  if (step == nullptr) step = std::make_shared<Step>(number);
  return step;
}

rpc::Future<void> StageWorker::put(ValueMessage message) {
  rpc::Promise<void> used;
  auto future = used.future();
  std::shared_ptr<Step> step;
  {
    std::lock_guard lock(mutex_);
    if (!ended_) step = step_of(message.step);
  }
  if (step == nullptr) {
    used.complete(over_error(message.step, "its rank has completed or left it"));
    return future;
  }
  for (std::size_t i = 0; i < message.values.size() && i < message.requires_grad.size(); ++i)
    if (message.requires_grad[i]) message.values[i].set_requires_grad(true);
  step->exchange->put({message.edge, message.microbatch, message.gradient}, std::move(message.values),
                      std::move(used));
  return future;
}

void StageWorker::end(const Error& error) {
  std::lock_guard lock(mutex_);
  ended_ = error;
  for (const auto& [number, step] : steps_) step->exchange->fail(std::make_exception_ptr(error));
}

// --- On the rank's thread ---

StageReport StageWorker::compute(const std::shared_ptr<Step>& step) {
  StageReport report;
  report.began_ns = std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
  const StagePart& part = step->part;
  StepContext context{
      .graph = graph_,
      .schedule = schedule_,
      .loss = loss_,
      .devices = devices_,
      .timeout = timeout_,
      .data = split_rows(part.inputs, part.targets, part.rows, schedule_.microbatches, mean_loss_),
      .with_backward = part.with_backward,
      .exchange = step->exchange};
  context.send = [this, step](const ValueExchange::Key& key, Values values) {
    send(step, key, std::move(values));
  };
  std::map<int, StageRunner> runners;
  for (const int stage : stages_) runners.try_emplace(stage, graph_[stage], *step->pass);
  step->pass->run_in_contexts([&] { report.spans = RankStep(context, runners, rank_).run(); });
  if (const auto error = step->exchange->error(); error != nullptr) std::rethrow_exception(error);
  if (stages_.back() + 1 != graph_.size()) return report;
  if (part.with_backward) {
    report.loss = weighted_sum(context.losses, context.data.weights);
    report.losses = std::move(context.losses);
  } else {
    report.outputs = joined(context.outputs);
  }
  return report;
}

void StageWorker::execute(const std::shared_ptr<Step>& step) {
  rpc::Result<StageReport> report = rpc::capture([&] { return compute(step); });
  step->exchange->fail(over_error(step->number, "its rank has completed or left it"));
  std::map<int, rpc::Promise<StageReport>> asked;
  {
    std::lock_guard lock(mutex_);
    steps_.erase(step->number);
    over_ = std::max(over_, step->number);
    asked = std::move(step->asked);
  }
  for (auto& [stage, promise] : asked) {
    if (!report.ok()) {
      promise.complete(report.error());
      continue;
    }
    StageReport own = report.value();
    if (stage != stages_.front()) own.spans.clear();
    if (stage + 1 != graph_.size()) own.losses.clear(), own.outputs.clear(), own.loss = at::Tensor();
    promise.complete(std::move(own));
  }
}

void StageWorker::send(const std::shared_ptr<Step>& step, const ValueExchange::Key& key, Values values) {
  const int to = schedule_.rank_of(key.gradient ? key.edge.from : key.edge.to, key.microbatch);
  if (to == rank_) return step->exchange->put(key, std::move(values));
  const std::pair<schedule::Edge, bool> direction{key.edge, key.gradient};
  {
    std::unique_lock lock(step->mutex);
    const bool in_time = step->used.wait_until(lock, rpc::later(rpc::Clock::now(), timeout_), [&] {
      return step->exchange->error() != nullptr || step->in_flight[direction] < credits_.at(direction);
    });
    if (step->exchange->error() != nullptr) std::rethrow_exception(step->exchange->error());
    if (!in_time)
      throw Error(
          ErrorKind::deadline_exceeded,
          "stage " + std::to_string(key.gradient ? key.edge.from : key.edge.to) +
              " has not used a value of " + std::to_string(credits_.at(direction)) + " in flight within " +
              std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout_).count()) +
              " ms");
    ++step->in_flight[direction];
  }
  ValueMessage message{.pipeline = id_,
                       .step = step->number,
                       .edge = key.edge,
                       .microbatch = key.microbatch,
                       .gradient = key.gradient};
  for (const at::Tensor& value : values) {
    message.requires_grad.push_back(value.defined() && value.requires_grad());
    message.values.push_back(value.defined() ? value.detach() : value);
  }
  rref::RRefLayer::of(*core_)
      ->peer(workers_[static_cast<std::size_t>(to)])
      .call<&PipelineService::put>(std::move(message))
      .then([step, direction](rpc::Result<void>&& used) {
        if (!used.ok()) step->exchange->fail(used.error());
        std::lock_guard lock(step->mutex);
        --step->in_flight[direction];
        step->used.notify_all();
      });
}

}  // namespace weft::pipeline

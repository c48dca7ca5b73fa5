#include <weft/parallel/pipeline/remote/internal/stage_worker.h>

#include <weft/parallel/pipeline/deferred_batch_norm.h>
#include <weft/parallel/pipeline/internal/rank_step.h>
#include <weft/parallel/pipeline/internal/rank_timeline.h>
#include <weft/parallel/pipeline/internal/ties.h>
#include <weft/parallel/pipeline/remote/internal/pipeline_service.h>
#include <weft/rref/rref_layer.h>

#include <algorithm>
#include <utility>

namespace weft::pipeline {

using dist_autograd::PassState;
using rpc::Error;
using rpc::ErrorKind;

namespace {

// `aborted` tells the driver that the cause is another rank's error.
std::exception_ptr over_error(std::uint64_t step, const std::string& why) {
  return std::make_exception_ptr(
      Error(ErrorKind::aborted, "pipeline step " + std::to_string(step) + " has ended: " + why));
}

std::exception_ptr not_sent(std::uint64_t step, const ValueExchange::Key& key,
                            const std::exception_ptr& error) {
  return over_error(step, "micro-batch " + std::to_string(key.microbatch) + " was not sent from stage " +
                              std::to_string(key.from()) + " to stage " + std::to_string(key.to()) + ": " +
                              rpc::what_of(error));
}

}  // namespace

struct StageWorker::Step {
  Step(std::uint64_t n, const Credits& credits) : number(n), in_flight(credits, *exchange) {}

  const std::uint64_t number;
  const std::shared_ptr<ValueExchange> exchange = std::make_shared<ValueExchange>();
  std::shared_ptr<PassState> pass;
  StagePart part;  // the rank's
  // Guarded by the worker's mutex.
  std::map<int, rpc::Promise<StageReport>> asked = {};  // by stage
  bool is_posted = false;                               // run() was called for all stages
  InFlight in_flight;
};

StageWorker::StageWorker(const rpc::AgentCore& core, const WorkerPlan& plan, StageGraph graph,
                         schedule::Schedule schedule, Loss loss)
    : id_(plan.pipeline),
      rank_(plan.rank),
      timeout_(plan.timeout_ns),
      mean_loss_(plan.mean_loss),
      graph_(std::move(graph)),
      schedule_(std::move(schedule)),
      loss_(std::move(loss)),
      devices_(plan.device.empty() ? 0 : plan.workers.size(),
               c10::Device(plan.device.empty() ? "cpu" : plan.device)),
      stages_(stages_of(schedule_, rank_)),
      credits_(credits_of(graph_, schedule_)),
      ties_(tie_messages(graph_, schedule_)) {
  set_workers(core, plan.workers);
  for (const int stage : stages_) {
    torch::nn::Module& module = *graph_[stage].module;
    if (!devices_.empty()) module.to(devices_.front());
    parameters_.try_emplace(stage, module, schedule_, rank_, stage,
                            ParameterOptions{.optimizer = plan.optimizer, .mean_loss = mean_loss_});
  }
}

StageWorker::~StageWorker() = default;

rpc::Future<StageReport> StageWorker::run(int stage, std::shared_ptr<PassState> pass, StagePart part) {
  rpc::Promise<StageReport> promise;
  auto future = promise.future();
  std::vector<std::shared_ptr<Step>> before;  // steps that have ended without this rank
  std::shared_ptr<Step> step;
  std::exception_ptr refused;
  bool is_complete = false;
  {
    rpc::MutexLock lock(mutex_);
    if (ended_) {
      refused = std::make_exception_ptr(*ended_);
    } else if (step = step_of(part.step); step == nullptr) {
      refused = over_error(part.step, "a later step has begun");
    } else if (step->asked.contains(stage) || step->is_posted) {
      refused = std::make_exception_ptr(
          Error(ErrorKind::failed_precondition, "stage " + std::to_string(stage) +
                                                    " is already running step " + std::to_string(part.step) +
                                                    ", expected one call for each stage in a step"));
    } else {
      for (auto other = steps_.begin(); other->first < part.step; other = steps_.erase(other))
        before.push_back(other->second);
      over_ = std::max(over_, part.step - 1);
      if (step->pass == nullptr) {
        step->pass = pass;
        step->part = {.step = part.step, .with_backward = part.with_backward, .rows = part.rows};
      }
      for (std::size_t i = 0; i < part.inputs.size(); ++i) {
        if (step->part.inputs.size() <= i) step->part.inputs.resize(i + 1);
        if (part.inputs[i].defined()) step->part.inputs[i] = std::move(part.inputs[i]);
      }
      if (!part.targets.empty()) step->part.targets = std::move(part.targets);
      step->asked.emplace(stage, std::move(promise));
      ++open_passes_;
      is_complete = step->is_posted = step->asked.size() == stages_.size();
    }
  }
  for (const auto& each : before) give_up(each, over_error(each->number, "a later step has begun"));
  if (refused != nullptr) {
    promise.complete(refused);
    return future;
  }
  pass->on_end([weak = weak_from_this(), step] {
    const auto self = weak.lock();
    if (self == nullptr) return;
    self->give_up(step, over_error(step->number, "its pass has ended"));
    self->pass_ended();
  });
  if (is_complete) thread_.post([self = shared_from_this(), step] { self->execute(step); });
  return future;
}

std::shared_ptr<StageWorker::Step> StageWorker::step_of(std::uint64_t number) {
  if (number <= over_) return nullptr;
  auto& step = steps_[number];
  if (step == nullptr) step = std::make_shared<Step>(number, credits_);
  return step;
}

// Ends the step on this worker. If the thread has not received the step, nothing else completes the futures
// of run().
void StageWorker::give_up(const std::shared_ptr<Step>& step, const std::exception_ptr& error) {
  step->exchange->fail(error);
  step->in_flight.wake();
  std::map<int, rpc::Promise<StageReport>> asked;
  {
    rpc::MutexLock lock(mutex_);
    if (step->is_posted) return;
    step->is_posted = true;
    asked = std::move(step->asked);
    steps_.erase(step->number);
    over_ = std::max(over_, step->number);
  }
  for (auto& [stage, promise] : asked) promise.complete(error);
}

void StageWorker::pass_ended() {
  std::vector<rpc::Callback> jobs;
  {
    rpc::MutexLock lock(mutex_);
    if (--open_passes_ == 0) jobs = std::exchange(after_passes_, {});
  }
  for (auto& job : jobs) thread_.post(std::move(job));
}

void StageWorker::after_passes(rpc::Callback job) {
  {
    rpc::MutexLock lock(mutex_);
    if (open_passes_ > 0) return after_passes_.push_back(std::move(job));
  }
  thread_.post(std::move(job));
}

void StageWorker::set_workers(const rpc::AgentCore& core, std::vector<rpc::AgentId> workers) {
  std::vector<rpc::Peer> peers;
  for (const rpc::AgentId& worker : workers) peers.push_back(rref::RRefLayer::of(core)->peer(worker));
  rpc::MutexLock lock(mutex_);
  workers_ = std::move(workers);
  peers_ = std::move(peers);
}

std::vector<at::Generator> StageWorker::generators() const {
  std::vector<at::Generator> all{at::globalContext().defaultGenerator(at::kCPU)};
  if (!devices_.empty() && !devices_.front().is_cpu())
    all.push_back(at::globalContext().defaultGenerator(devices_.front()));
  for (const int stage : stages_)
    for (const at::Generator& generator : graph_[stage].generators) all.push_back(generator);
  return all;
}

std::optional<Error> StageWorker::refusal(const rpc::AgentId& from, const ValueMessage& message) {
  const auto& edges = schedule_.edges;
  const ValueExchange::Key key{message.edge, message.microbatch, message.gradient};
  const int sender = key.from(), receiver = key.to();
  const bool is_known =
      message.microbatch < schedule_.microbatches
          ? message.microbatch >= 0 && std::find(edges.begin(), edges.end(), key.edge) != edges.end()
          : std::find(ties_.begin(), ties_.end(), key) != ties_.end();
  if (!is_known || !message.sent.has(values_in(key, graph_, schedule_)) ||
      schedule_.rank_of(receiver, 0) != rank_)
    return Error(ErrorKind::invalid_argument,
                 "a value of stage " + std::to_string(sender) + " for stage " + std::to_string(receiver) +
                     " does not fit the model of this worker: micro-batch " +
                     std::to_string(message.microbatch) + " of " + std::to_string(schedule_.microbatches) +
                     ", " + std::to_string(message.sent.values.size()) +
                     " tensors, expected a value of an edge to a stage of rank " + std::to_string(rank_));
  rpc::MutexLock lock(mutex_);
  if (const rpc::AgentId& owner = workers_[static_cast<std::size_t>(schedule_.rank_of(sender, 0))];
      from != owner)
    return Error(ErrorKind::permission_denied, from.name + " does not compute stage " +
                                                   std::to_string(sender) + ", expected a value from " +
                                                   owner.name);
  return std::nullopt;
}

rpc::Future<void> StageWorker::put(const rpc::AgentId& from, ValueMessage message) {
  rpc::Promise<void> used;
  auto future = used.future();
  if (const auto refused = refusal(from, message)) {
    used.fail(*refused);
    return future;
  }
  std::shared_ptr<Step> step;
  {
    rpc::MutexLock lock(mutex_);
    if (!ended_) step = step_of(message.step);
  }
  if (step == nullptr) {
    used.complete(over_error(message.step, "its rank has completed or left it"));
    return future;
  }
  step->exchange->put({message.edge, message.microbatch, message.gradient}, std::move(message.sent).take(),
                      std::move(used));
  return future;
}

dist_optim::StepTarget& StageWorker::optimizer(int stage) {
  return optimizer_of("Pipeline", parameters_, stage);
}

void StageWorker::end(const Error& error) {
  std::vector<std::shared_ptr<Step>> steps;
  {
    rpc::MutexLock lock(mutex_);
    ended_ = error;
    for (const auto& [number, step] : steps_) steps.push_back(step);
  }
  for (const auto& step : steps) give_up(step, std::make_exception_ptr(error));
}

void StageWorker::join() { thread_.end(); }

// --- On the rank's thread ---

StageReport StageWorker::compute(const std::shared_ptr<Step>& step) {
  StageReport report;
  report.spans.began_ns = nanoseconds_since_1970();
  const StagePart& part = step->part;
  StepContext context{
      .graph = graph_,
      .schedule = schedule_,
      .loss = loss_,
      .devices = devices_,
      .timeout = timeout_,
      .data = split_rows(part.inputs, part.targets, part.rows, schedule_.microbatches, mean_loss_),
      .with_backward = part.with_backward,
      .parameters = &parameters_,
      .exchange = step->exchange};
  context.send = [this, step](const ValueExchange::Key& key, Values values) {
    send(step, key, std::move(values));
  };
  std::map<int, StageRunner> runners;
  for (const int stage : stages_)
    runners.try_emplace(stage, graph_[stage], parameters_.at(stage).gradients());
  context.within = [&](const std::function<void()>& body) { step->pass->run_in_contexts(body); };
  for (auto& [stage, own] : parameters_) own.begin(part.with_backward);
  report.spans.spans = RankStep(context, runners, rank_).run();
  if (step->exchange->error() == nullptr)
    step->pass->run_in_contexts([&] {
      for (auto& [stage, own] : parameters_)
        if (own.optimizer() == nullptr) own.gradients().publish(*step->pass);
    });
  if (const auto error = step->exchange->error(); error != nullptr) std::rethrow_exception(error);
  if (*stages_.rbegin() + 1 != graph_.size()) return report;
  if (part.with_backward) {
    report.loss = weighted_sum(context.losses, context.data.weights).cpu();
    for (const at::Tensor& loss : context.losses) report.losses.push_back(loss.cpu());
  } else {
    for (const at::Tensor& output : joined(context.outputs, context.data.weights))
      report.outputs.push_back(output.cpu());
  }
  return report;
}

void StageWorker::execute(const std::shared_ptr<Step>& step) {
  rpc::Result<StageReport> report = rpc::capture([&] {
    StageReport own = compute(step);
    end_minibatch(graph_, true);
    return own;
  });
  for (auto& [stage, own] : parameters_) own.clear();
  if (!report.ok()) static_cast<void>(rpc::capture([&] { end_minibatch(graph_, false); }));
  step->exchange->fail(over_error(step->number, "its rank has completed or left it"));
  std::map<int, rpc::Promise<StageReport>> asked;
  {
    rpc::MutexLock lock(mutex_);
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
    if (stage != *stages_.begin()) own.spans = {};
    if (stage + 1 != graph_.size()) own.losses.clear(), own.outputs.clear(), own.loss = at::Tensor();
    promise.complete(std::move(own));
  }
}

void StageWorker::send(const std::shared_ptr<Step>& step, const ValueExchange::Key& key, Values values) {
  const int to = schedule_.rank_of(key.to(), key.microbatch);
  if (to == rank_) return step->exchange->put(key, std::move(values));
  step->in_flight.add(key, to, timeout_);
  ValueMessage message{.pipeline = id_,
                       .step = step->number,
                       .edge = key.edge,
                       .microbatch = key.microbatch,
                       .gradient = key.gradient,
                       .sent = SentValues::of(values)};
  rpc::Peer peer = [&] {
    rpc::MutexLock lock(mutex_);
    return peers_[static_cast<std::size_t>(to)];
  }();
  peer.call<&PipelineService::put>(std::move(message)).then([step, key, to](rpc::Result<void>&& used) {
    if (!used.ok()) step->exchange->fail(not_sent(step->number, key, used.error()));
    step->in_flight.used(key, to);
  });
}

}  // namespace weft::pipeline

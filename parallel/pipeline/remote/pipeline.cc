#include <weft/parallel/pipeline/remote/pipeline.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/service/internal/owner_call.h>
#include <weft/parallel/pipeline/internal/check_schedule.h>
#include <weft/parallel/pipeline/internal/rank_timeline.h>
#include <weft/parallel/pipeline/microbatches.h>
#include <weft/parallel/pipeline/remote/internal/pipeline_service.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>
#include <atomic>
#include <set>
#include <utility>

namespace weft::pipeline {

using rpc::Error;
using rpc::ErrorKind;

namespace {

using Reports = std::vector<StageReport>;

// The reports of all stages, or the error that ended the step.
//
// The first failure releases the pass, so that all ranks end the step. It is also a failure if no stage
// completes within the timeout after another one has: no other rank waits for the last actions of a rank. The
// step completes when all ranks have ended it, or after the timeout. If a rank fails with `aborted`, it has
// only learned of the end: the cause is the error of another rank.
class Gathering : public std::enable_shared_from_this<Gathering> {
 public:
  Gathering(std::size_t stages, std::shared_ptr<dist_autograd::Pass> pass, std::shared_ptr<rpc::Loop> loop,
            std::chrono::nanoseconds timeout)
      : pass_(std::move(pass)), loop_(std::move(loop)), timeout_(timeout), reports_(stages) {
    for (std::size_t stage = 0; stage < stages; ++stage) left_.insert(stage);
  }

  rpc::Future<Reports> future() {
    promise_.on_cancel([weak = weak_from_this()] {
      if (const auto self = weak.lock())
        self->fail(std::make_exception_ptr(Error(ErrorKind::cancelled, "the pipeline step was cancelled")));
    });
    return promise_.future();
  }
  void wait_for(std::size_t stage, rpc::Future<StageReport> report) {
    std::move(report).then([self = shared_from_this(), stage](rpc::Result<StageReport>&& ended) {
      self->ended(stage, std::move(ended));
    });
  }

 private:
  void ended(std::size_t stage, rpc::Result<StageReport>&& report) {
    if (!report.ok()) fail(report.error());
    rpc::MutexLock lock(mutex_);
    if (report.ok() && !over_) reports_[stage] = std::move(report).get();
    left_.erase(stage);
    if (left_.empty()) return finish(lock);
    lock.unlock();
    loop_->post([weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->wait_for_the_next();
    });
  }
  // On the loop.
  void wait_for_the_next() {
    loop_->cancel(*wait_);
    rpc::MutexLock lock(mutex_);
    if (over_ || error_ != nullptr) return;
    *wait_ = loop_->schedule(rpc::later(loop_->now(), timeout_), [weak = weak_from_this()] {
      if (const auto self = weak.lock()) self->fail(self->none_has_followed());
    });
  }
  std::exception_ptr none_has_followed() {
    rpc::MutexLock lock(mutex_);
    std::string stages;
    for (const std::size_t stage : left_) stages += (stages.empty() ? "" : ", ") + std::to_string(stage);
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(timeout_);
    return std::make_exception_ptr(
        Error(ErrorKind::deadline_exceeded, "pipeline step: no stage has completed within " +
                                                std::to_string(limit.count()) +
                                                " ms after another one; not complete: stage " + stages));
  }
  void fail(std::exception_ptr error) {
    {
      rpc::MutexLock lock(mutex_);
      if (over_) return;
      const bool is_first = error_ == nullptr;
      if (is_first || is_aborted(error_)) error_ = std::move(error);
      if (!is_first) return;
    }
    pass_->release();
    loop_->schedule_after(timeout_, [weak = weak_from_this()] {
      const auto self = weak.lock();
      if (self == nullptr) return;
      rpc::MutexLock lock(self->mutex_);
      self->finish(lock);
    });
  }
  void finish(rpc::MutexLock& lock) WEFT_REQUIRES(mutex_) {
    if (std::exchange(over_, true)) return;
    const std::exception_ptr error = error_;
    Reports reports = std::move(reports_);
    rpc::MutexUnlock unlocked(lock, mutex_);
    loop_->post([loop = loop_.get(), wait = wait_] { loop->cancel(*wait); });
    error != nullptr ? promise_.complete(error) : promise_.complete(std::move(reports));
  }
  static bool is_aborted(const std::exception_ptr& error) {
    try {
      std::rethrow_exception(error);
    } catch (const Error& thrown) {
      return thrown.kind() == ErrorKind::aborted;
    } catch (...) {
      return false;
    }
  }

  const std::shared_ptr<dist_autograd::Pass> pass_;
  const std::shared_ptr<rpc::Loop> loop_;
  const std::chrono::nanoseconds timeout_;
  rpc::Mutex mutex_;
  std::set<std::size_t> left_ WEFT_GUARDED_BY(mutex_);  // stages that have not ended
  Reports reports_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
  bool over_ WEFT_GUARDED_BY(mutex_) = false;
  rpc::Promise<Reports> promise_;  // completed once, by the first finish()
  // Used on the loop.
  const std::shared_ptr<rpc::Loop::TimerId> wait_ = std::make_shared<rpc::Loop::TimerId>(0);
};

// Copies inputs to host memory. An input that the stage does not use is not sent: it is an undefined tensor.
Values inputs_for(const Stage& stage, const Values& inputs) {
  Values own;
  for (const Source& source : stage.inputs) {
    if (source.from >= 0) continue;
    const auto at = static_cast<std::size_t>(source.output);
    if (at >= inputs.size()) continue;  // the stage names the error
    if (own.size() <= at) own.resize(at + 1);
    own[at] = inputs[at].cpu();
  }
  return own;
}

Values on_host(const Values& tensors) {
  Values all;
  for (const at::Tensor& tensor : tensors) all.push_back(tensor.cpu());
  return all;
}

schedule::Timeline timeline_of(const schedule::Schedule& schedule, Reports& reports) {
  std::vector<RankSpans> ranks(schedule.ranks.size());
  for (std::size_t stage = reports.size(); stage-- > 0;)  // the first stage of each rank has its spans
    ranks[static_cast<std::size_t>(schedule.rank_of(static_cast<int>(stage), 0))] =
        std::move(reports[stage].spans);
  return pipeline::timeline_of(ranks);
}

[[noreturn]] void refuse_call(const std::string& text) { throw Error(ErrorKind::invalid_argument, text); }

void refuse_two_ranks_of_one(const std::string& method, const std::vector<rpc::AgentId>& workers) {
  std::set<rpc::AgentId> seen;
  for (const rpc::AgentId& worker : workers)
    if (!seen.insert(worker).second)
      refuse_call(method + ": two ranks have the worker " + worker.name +
                  ", expected one agent for each rank");
}

}  // namespace

struct Pipeline::Impl : std::enable_shared_from_this<Impl> {
  Impl(rpc::Agent& driver, PipelineOptions given, StageGraph model, WorkerPlan first)
      : agent(driver), options(std::move(given)), graph(std::move(model)), plan(std::move(first)) {}

  // Reserves the stages: until the caller resets the result, another enter() fails.
  std::shared_ptr<void> enter(const std::string& what) {
    if (in_flight.exchange(true))
      throw Error(ErrorKind::failed_precondition, what + ": a step is in flight, expected none");
    return {nullptr, [self = shared_from_this()](void*) { self->in_flight = false; }};
  }

  rpc::Future<Reports> run(const std::shared_ptr<dist_autograd::Pass>& pass, bool with_backward,
                           const Values& inputs, const Values& targets) {
    const std::int64_t rows = rows_of(inputs, targets);
    auto entered = enter("pipeline step");
    ++steps;
    std::erase_if(passes, [](const auto& each) { return each.expired(); });
    passes.push_back(pass->state());
    const auto gathering =
        std::make_shared<Gathering>(stages.size(), pass, agent.core()->pick_loop(), options.timeout);
    auto reports =
        gathering->future().then([entered = std::move(entered)](rpc::Result<Reports>&& ended) mutable {
          entered.reset();
          return std::move(ended);
        });
    for (std::size_t stage = 0; stage < stages.size(); ++stage) {
      try {
        StagePart part{.step = steps,
                       .with_backward = with_backward,
                       .rows = rows,
                       .inputs = inputs_for(graph[static_cast<int>(stage)], inputs)};
        if (with_backward && stage + 1 == stages.size()) part.targets = on_host(targets);
        gathering->wait_for(
            stage,
            stages[stage].with({.timeout = rpc::no_timeout}).call<&StageModule::run>(*pass, std::move(part)));
      } catch (...) {
        gathering->wait_for(stage, rpc::Future<StageReport>::made(std::current_exception()));
      }
    }
    return reports;
  }

  rpc::Future<std::vector<rref::RRef<StageModule>>> install(WorkerPlan whole, int rank) const {
    whole.rank = rank;
    whole.device = options.devices.empty() ? "" : options.devices[static_cast<std::size_t>(rank)].str();
    return rref::RRefLayer::of(*agent.core())
        ->peer(whole.workers[static_cast<std::size_t>(rank)])
        .call<&PipelineService::install>(whole);
  }
  static rpc::Task<void> restore(std::shared_ptr<Impl> self, PipelineCommit commit,
                                 std::map<int, rpc::Peer> replaced);

  rpc::Agent& agent;
  const PipelineOptions options;
  const StageGraph graph;  // of all stages, none of which is here

  std::atomic<bool> in_flight = false;
  // Used only by the operation that is in flight.
  WorkerPlan plan;
  std::vector<rref::RRef<StageModule>> stages;
  std::uint64_t steps = 0;
  std::vector<std::weak_ptr<dist_autograd::PassState>> passes;  // of steps
};

rpc::Task<void> Pipeline::Impl::restore(std::shared_ptr<Impl> self, PipelineCommit commit,
                                        std::map<int, rpc::Peer> replaced) {
  const auto& schedule = self->options.schedule;
  if (commit.stages.size() != self->stages.size())
    refuse_call("Pipeline::restore: a commit of " + std::to_string(commit.stages.size()) +
                " stages, expected " + std::to_string(self->stages.size()));
  WorkerPlan plan = self->plan;
  for (const auto& [rank, worker] : replaced) {
    if (rank < 0 || static_cast<std::size_t>(rank) >= plan.workers.size())
      refuse_call("Pipeline::restore: a worker for rank " + std::to_string(rank) + ", expected one of " +
                  std::to_string(plan.workers.size()) + " ranks");
    const rpc::AgentId id = co_await worker.ready();
    plan.workers[static_cast<std::size_t>(rank)] = id;
  }
  refuse_two_ranks_of_one("Pipeline::restore", plan.workers);
  // After a restore, the gradients of earlier passes belong to other parameters. The workers wait until
  // these passes have ended.
  const auto autograd = dist_autograd::AutogradLayer::of(*self->agent.core());
  for (const auto& pass : std::exchange(self->passes, {}))
    if (const auto state = pass.lock())
      autograd->release(state->id(), std::make_exception_ptr(
                                         Error(ErrorKind::aborted, "the pipeline was restored to a commit")));
  for (const auto& [rank, worker] : replaced) {
    const std::vector<rref::RRef<StageModule>> built = co_await self->install(plan, rank);
    self->plan.workers[static_cast<std::size_t>(rank)] = plan.workers[static_cast<std::size_t>(rank)];
    std::size_t next = 0;
    for (const int stage : stages_of(schedule, rank))
      self->stages[static_cast<std::size_t>(stage)] = built.at(next++);
  }
  std::vector<rpc::Future<void>> restored;
  for (std::size_t stage = 0; stage < commit.stages.size(); ++stage)
    restored.push_back(dist_optim::ask<&PipelineService::restore>(
        self->stages[stage].reference(), std::move(commit.stages[stage]), self->plan.workers));
  auto all = rpc::when_all(std::move(restored));
  co_await std::move(all);
}

Pipeline::Pipeline(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;
Pipeline::~Pipeline() = default;

rpc::Future<Pipeline> Pipeline::create(rpc::Agent& agent, std::vector<rpc::Peer> workers,
                                       PipelineOptions options) {
  std::shared_ptr<Impl> impl;
  std::vector<rpc::Future<std::vector<rref::RRef<StageModule>>>> installed;
  try {
    const auto layer = PipelineLayer::of(*agent.core());
    const LayerGraph layers = layer->model().layers();
    StageGraph graph = cut(layers, {.cuts = options.cuts, .built = std::set<int>{}});
    options.schedule = computations_of(options.schedule);
    options.schedule.edges = graph.edges();
    if (options.optimizer && !has_steps(options.schedule))
      options.schedule = schedule::add_optimizer_steps(options.schedule);
    check_schedule("Pipeline::create", graph, options.schedule,
                   {.steps = true, .has_optimizer = options.optimizer.has_value()});
    check_ties("Pipeline::create", graph, options.schedule);
    if (workers.size() != options.schedule.ranks.size())
      refuse_call("Pipeline::create: " + std::to_string(workers.size()) +
                  " workers, expected one for each of " + std::to_string(options.schedule.ranks.size()) +
                  " ranks");
    if (!options.devices.empty() && options.devices.size() != workers.size())
      refuse_call("Pipeline::create: " + std::to_string(options.devices.size()) +
                  " devices, expected one for each of " + std::to_string(workers.size()) +
                  " workers, or none");
    WorkerPlan plan{.pipeline = {agent.id().incarnation, layer->next_number()},
                    .schedule = schedule::save(options.schedule),
                    .microbatches = options.schedule.microbatches,
                    .layers = layers.names(),
                    .cuts = options.cuts,
                    .seed = options.seed,
                    .timeout_ns = options.timeout.count(),
                    .mean_loss = options.mean_loss,
                    .optimizer = options.optimizer};
    for (const rpc::Peer& worker : workers) plan.workers.push_back(rref::detail::known_incarnation(worker));
    refuse_two_ranks_of_one("Pipeline::create", plan.workers);
    impl = std::make_shared<Impl>(agent, std::move(options), std::move(graph), std::move(plan));
    for (std::size_t rank = 0; rank < workers.size(); ++rank)
      installed.push_back(impl->install(impl->plan, static_cast<int>(rank)));
  } catch (...) {
    return rpc::Future<Pipeline>::made(std::current_exception());
  }
  return rpc::when_all(std::move(installed))
      .then([impl](rpc::Result<std::vector<std::vector<rref::RRef<StageModule>>>>&& all)
                -> rpc::Result<Pipeline> {
        if (!all.ok()) return all.error();
        const auto& schedule = impl->options.schedule;
        std::vector<std::size_t> next(schedule.ranks.size());
        for (int stage = 0; stage < impl->graph.size(); ++stage) {
          const auto rank = static_cast<std::size_t>(schedule.rank_of(stage, 0));
          impl->stages.push_back(all.value().at(rank).at(next[rank]++));
        }
        return Pipeline(impl);
      });
}

rpc::Future<PipelineStep> Pipeline::step(Values inputs, Values targets) {
  try {
    expect_backward(impl_->options.schedule);
    const auto pass = std::make_shared<dist_autograd::Pass>(impl_->agent);
    return impl_->run(pass, true, inputs, targets)
        .then([impl = impl_, pass](rpc::Result<Reports>&& ended) -> rpc::Result<PipelineStep> {
          if (!ended.ok()) return ended.error();
          Reports reports = std::move(ended).get();
          pass->state()->begin_backward();  // the stages have run it
          pass->state()->end_backward();
          return PipelineStep{.losses = std::move(reports.back().losses),
                              .loss = std::move(reports.back().loss),
                              .timeline = timeline_of(impl->options.schedule, reports),
                              .pass = std::move(*pass)};
        });
  } catch (...) {
    return rpc::Future<PipelineStep>::made(std::current_exception());
  }
}

rpc::Future<Values> Pipeline::evaluate(Values inputs) {
  try {
    const auto pass = std::make_shared<dist_autograd::Pass>(impl_->agent);
    return impl_->run(pass, false, inputs, {})
        .then([pass](rpc::Result<Reports>&& ended) -> rpc::Result<Values> {
          pass->release();
          if (!ended.ok()) return ended.error();
          return std::move(std::move(ended).get().back().outputs);
        });
  } catch (...) {
    return rpc::Future<Values>::made(std::current_exception());
  }
}

rpc::Future<PipelineStep> Pipeline::step(at::Tensor input, at::Tensor target) {
  return step(Values{std::move(input)}, Values{std::move(target)});
}
rpc::Future<at::Tensor> Pipeline::evaluate(at::Tensor input) {
  return evaluate(Values{std::move(input)})
      .then([](rpc::Result<Values>&& outputs) -> rpc::Result<at::Tensor> {
        if (!outputs.ok()) return outputs.error();
        return std::move(std::move(outputs).get().at(0));
      });
}

rpc::Future<void> Pipeline::train(bool on) {
  std::vector<rpc::Future<void>> all;
  for (const auto& stage : impl_->stages) all.push_back(dist_autograd::RemoteModule(stage).train(on));
  return rpc::when_all(std::move(all));
}

rpc::Future<void> Pipeline::set_learning_rate(double rate) {
  std::vector<rpc::Future<void>> all;
  for (const auto& stage : impl_->stages) all.push_back(stage.call<&StageModule::set_learning_rate>(rate));
  return rpc::when_all(std::move(all));
}

rpc::Future<dist_optim::DistributedOptimizerState> Pipeline::save_optimizer_state() {
  std::vector<rpc::Future<dist_optim::OptimizerState>> all;
  for (const auto& stage : impl_->stages) all.push_back(stage.call<&StageModule::optimizer_state>());
  return rpc::when_all(std::move(all))
      .then([](rpc::Result<std::vector<dist_optim::OptimizerState>>&& states)
                -> rpc::Result<dist_optim::DistributedOptimizerState> {
        if (!states.ok()) return states.error();
        return dist_optim::DistributedOptimizerState{std::move(states).get()};
      });
}

rpc::Future<void> Pipeline::load_optimizer_state(const dist_optim::DistributedOptimizerState& state) {
  if (state.modules.size() != impl_->stages.size())
    return rpc::Future<void>::made(std::make_exception_ptr(
        Error(ErrorKind::invalid_argument, "Pipeline: a state of " + std::to_string(state.modules.size()) +
                                               " stages, expected " + std::to_string(impl_->stages.size()))));
  std::vector<rpc::Future<void>> all;
  for (std::size_t stage = 0; stage < impl_->stages.size(); ++stage)
    all.push_back(impl_->stages[stage].call<&StageModule::load_optimizer_state>(state.modules[stage]));
  return rpc::when_all(std::move(all));
}

rpc::Future<PipelineCommit> Pipeline::commit() {
  try {
    auto entered = impl_->enter("Pipeline::commit");
    std::vector<rpc::Future<StageCommit>> all;
    for (const auto& stage : impl_->stages)
      all.push_back(dist_optim::ask<&PipelineService::commit>(stage.reference()));
    return rpc::when_all(std::move(all))
        .then([entered = std::move(entered)](
                  rpc::Result<std::vector<StageCommit>>&& stages) mutable -> rpc::Result<PipelineCommit> {
          entered.reset();
          if (!stages.ok()) return stages.error();
          return PipelineCommit{std::move(stages).get()};
        });
  } catch (...) {
    return rpc::Future<PipelineCommit>::made(std::current_exception());
  }
}

rpc::Future<std::vector<int>> Pipeline::lost(std::chrono::nanoseconds silence) const {
  auto promise =
      std::make_shared<rpc::Promise<std::vector<int>>>(impl_->agent.core()->handlers().exceptions());
  auto future = promise->future();
  std::vector<rpc::Future<void>> asked;
  for (const rpc::AgentId& worker : impl_->plan.workers)
    asked.push_back(rref::RRefLayer::of(*impl_->agent.core())
                        ->peer(worker)
                        .with(rpc::CallOptions{.timeout = silence})
                        .call<rpc::Ping>());
  dist_optim::when_settled(std::move(asked), [promise](const std::vector<rpc::Result<void>>& answers) {
    std::vector<int> ranks;
    for (std::size_t rank = 0; rank < answers.size(); ++rank)
      if (!answers[rank].ok()) ranks.push_back(static_cast<int>(rank));
    promise->complete(std::move(ranks));
  });
  return future;
}

rpc::Future<void> Pipeline::restore(PipelineCommit commit, std::map<int, rpc::Peer> replaced) {
  try {
    auto entered = impl_->enter("Pipeline::restore");
    return Impl::restore(impl_, std::move(commit), std::move(replaced))
        .start(impl_->agent.core()->handlers())
        .then([entered = std::move(entered)](rpc::Result<void>&& restored) mutable {
          entered.reset();
          return std::move(restored);
        });
  } catch (...) {
    return rpc::Future<void>::made(std::current_exception());
  }
}

const std::vector<rref::RRef<StageModule>>& Pipeline::stages() const { return impl_->stages; }

std::vector<rref::ReferencePtr> Pipeline::modules() const {
  std::vector<rref::ReferencePtr> all;
  for (const auto& stage : impl_->stages) all.push_back(stage.reference());
  return all;
}

const schedule::Schedule& Pipeline::schedule() const { return impl_->options.schedule; }

}  // namespace weft::pipeline

#include <weft/parallel/pipeline/pipeline.h>

#include <weft/parallel/pipeline/internal/check_schedule.h>
#include <weft/parallel/pipeline/microbatches.h>
#include <weft/parallel/pipeline/remote/pipeline_service.h>
#include <weft/parallel/schedule/text.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

namespace weft::pipeline {

using rpc::Error;
using rpc::ErrorKind;

namespace {

using Reports = std::vector<StageReport>;

// The reports of all stages, or the error that ended the step. A rank that only learns of the end fails with
// `aborted`: the cause comes from another one.
class Gathering : public std::enable_shared_from_this<Gathering> {
 public:
  explicit Gathering(std::size_t stages) : left_(stages), reports_(stages) {}
  rpc::Future<Reports> future() { return promise_.future(); }

  void wait_for(std::size_t stage, rpc::Future<StageReport> report) {
    std::move(report).then([self = shared_from_this(), stage](rpc::Result<StageReport>&& ended) {
      self->ended(stage, std::move(ended));
    });
  }

 private:
  void ended(std::size_t stage, rpc::Result<StageReport>&& report) {
    std::unique_lock lock(mutex_);
    --left_;
    bool is_cause = false;
    if (report.ok()) {
      reports_[stage] = std::move(report).get();
    } else {
      is_cause = !is_aborted(report.error());
      if (error_ == nullptr || is_cause) error_ = report.error();
    }
    if (over_ || (!is_cause && left_ != 0)) return;
    over_ = true;
    lock.unlock();
    error_ != nullptr ? promise_.complete(error_) : promise_.complete(std::move(reports_));
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

  std::mutex mutex_;  // guards what follows
  std::size_t left_;
  Reports reports_;
  std::exception_ptr error_;
  bool over_ = false;
  rpc::Promise<Reports> promise_;
};

schedule::Timeline timeline_of(const schedule::Schedule& schedule, const Reports& reports) {
  schedule::Timeline timeline;
  timeline.ranks.resize(schedule.ranks.size());
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const StageReport& report : reports)
    if (report.began_ns != 0) first = std::min(first, report.began_ns);
  for (std::size_t stage = 0; stage < reports.size(); ++stage) {
    const double late = static_cast<double>(reports[stage].began_ns - first) * 1e-9;
    auto& spans = timeline.ranks[static_cast<std::size_t>(schedule.rank_of(static_cast<int>(stage), 0))];
    for (const schedule::Span& span : reports[stage].spans)
      spans.push_back({span.action, span.start + late, span.finish + late});
  }
  return timeline;
}

}  // namespace

struct Pipeline::Impl : std::enable_shared_from_this<Impl> {
  Impl(rpc::Agent& driver, PipelineOptions given, StageGraph model)
      : agent(driver), options(std::move(given)), graph(std::move(model)) {}

  rpc::Future<Reports> run(const dist_autograd::Pass& pass, bool with_backward, const Values& inputs,
                           const Values& targets) {
    const std::int64_t rows = rows_of(inputs, targets);
    if (in_flight.exchange(true))
      throw Error(ErrorKind::failed_precondition, "pipeline step: another one is in flight, expected none");
    ++steps;
    const auto gathering = std::make_shared<Gathering>(stages.size());
    auto reports = gathering->future();
    for (int stage = 0; stage < graph.size(); ++stage) {
      StagePart part{.step = steps, .with_backward = with_backward, .rows = rows};
      const auto& sources = graph[stage].inputs;
      if (std::any_of(sources.begin(), sources.end(), [](const Source& source) { return source.from < 0; }))
        part.inputs = inputs;
      if (with_backward && stage + 1 == graph.size()) part.targets = targets;
      const auto at = static_cast<std::size_t>(stage);
      gathering->wait_for(
          at, stages[at].with({.timeout = rpc::no_timeout}).call<&StageModule::run>(pass, std::move(part)));
    }
    return std::move(reports).then([self = shared_from_this()](rpc::Result<Reports>&& ended) {
      self->in_flight = false;
      return std::move(ended);
    });
  }

  rpc::Agent& agent;
  const PipelineOptions options;
  const StageGraph graph;  // of all stages, none of which is here
  std::vector<rref::RRef<StageModule>> stages;

  std::atomic<bool> in_flight = false;
  std::uint64_t steps = 0;
};

Pipeline::Pipeline(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Pipeline::Pipeline(Pipeline&&) noexcept = default;
Pipeline& Pipeline::operator=(Pipeline&&) noexcept = default;
Pipeline::~Pipeline() = default;

rpc::Future<Pipeline> Pipeline::create(rpc::Agent& agent, std::vector<rpc::Peer> workers,
                                       PipelineOptions options) {
  std::shared_ptr<Impl> impl;
  std::vector<rpc::Future<std::vector<rref::RRef<StageModule>>>> installed;
  try {
    const auto refuse = [](const std::string& text) {
      throw Error(ErrorKind::invalid_argument, "Pipeline::create: " + text);
    };
    const auto layer = PipelineLayer::of(*agent.core());
    StageGraph graph = cut(layer->model().layers(), {.cuts = options.cuts, .built = std::set<int>{}});
    options.schedule.edges = graph.edges();
    check_schedule("Pipeline::create", graph, options.schedule);
    if (workers.size() != options.schedule.ranks.size())
      refuse(std::to_string(workers.size()) + " workers, expected one for each of " +
             std::to_string(options.schedule.ranks.size()) + " ranks");
    if (!options.devices.empty() && options.devices.size() != workers.size())
      refuse(std::to_string(options.devices.size()) + " devices, expected one for each of " +
             std::to_string(workers.size()) + " workers, or none");
    WorkerPlan plan{.pipeline = {agent.id().incarnation, layer->next_number()},
                    .schedule = schedule::save(options.schedule),
                    .microbatches = options.schedule.microbatches,
                    .cuts = options.cuts,
                    .seed = options.seed,
                    .timeout_ns = options.timeout.count(),
                    .mean_loss = options.mean_loss};
    std::set<rpc::AgentId> seen;
    for (const rpc::Peer& worker : workers) {
      plan.workers.push_back(rref::detail::known_incarnation(worker));
      if (!seen.insert(plan.workers.back()).second)
        refuse("two ranks have the worker " + plan.workers.back().name +
               ", expected one agent for each rank");
    }
    impl = std::make_shared<Impl>(agent, std::move(options), std::move(graph));
    for (std::size_t rank = 0; rank < workers.size(); ++rank) {
      plan.rank = static_cast<int>(rank);
      plan.device = impl->options.devices.empty() ? "" : impl->options.devices[rank].str();
      installed.push_back(workers[rank].call<&PipelineService::install>(plan));
    }
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
    if (!has_backward(impl_->options.schedule))
      throw Error(ErrorKind::failed_precondition,
                  "pipeline step: the schedule has no backward: call evaluate(), or give another schedule");
    const auto pass = std::make_shared<dist_autograd::Pass>(impl_->agent);
    return impl_->run(*pass, true, inputs, targets)
        .then([impl = impl_, pass](rpc::Result<Reports>&& ended) -> rpc::Result<PipelineStep> {
          if (!ended.ok()) {
            pass->release();
            return ended.error();
          }
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
    return impl_->run(*pass, false, inputs, {})
        .then([pass](rpc::Result<Reports>&& ended) -> rpc::Result<Values> {
          pass->release();
          if (!ended.ok()) return ended.error();
          return std::move(std::move(ended).get().back().outputs);
        });
  } catch (...) {
    return rpc::Future<Values>::made(std::current_exception());
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

#include <weft/dist_optim/dist_lbfgs.h>
#include <weft/dist_optim/lbfgs/internal/options.h>
#include <weft/dist_optim/lbfgs/internal/service.h>
#include <weft/dist_optim/lbfgs/internal/strong_wolfe.h>
#include <weft/dist_optim/local/internal/require.h>
#include <weft/dist_optim/service/internal/async_mutex.h>
#include <weft/dist_optim/service/internal/owner_call.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

namespace weft::dist_optim {
namespace {

using Answers = std::vector<rpc::Result<void>>;

rpc::Future<Answers> answers_of(std::vector<rpc::Future<void>> calls) {
  auto promise = std::make_shared<rpc::Promise<Answers>>();
  auto future = promise->future();
  when_settled(std::move(calls), [promise](Answers answers) { promise->complete(std::move(answers)); });
  return future;
}

rpc::Task<LbfgsMeasures> sum_of(std::vector<rpc::Future<LbfgsMeasures>> calls) {
  std::vector<LbfgsMeasures> parts = co_await rpc::when_all(std::move(calls));
  for (std::size_t i = 1; i < parts.size(); ++i) parts[0].add(parts[i]);
  co_return std::move(parts[0]);
}

}  // namespace

// The data that steps share with the handle; it may outlive the handle.
struct DistLBFGS::Core {
  Core(std::shared_ptr<OptimizerLayer> layer, LbfgsOptions options, std::vector<rref::ReferencePtr> modules)
      : layer(std::move(layer)),
        options(options),
        modules(std::move(modules)),
        number(this->layer->next_step()),
        gram(options.history_size) {}
  template <auto Method, class... Arguments>
  auto on_all(const Arguments&... arguments) const {
    std::vector<decltype(ask<Method>(modules.front(), number, arguments...))> calls;
    for (const auto& module : modules) calls.push_back(ask<Method>(module, number, arguments...));
    return calls;
  }
  // Runs only after all attaching has completed.
  ~Core() {
    for (auto& call : on_all<&LbfgsService::detach>()) std::move(call).then([](auto&&) {});
  }
  StepError error(const std::exception_ptr& failure, const Answers& answers) const;
  // A job has completed. Releases the core first: code that waits for the job may then rely on the handle's
  // end.
  static void end_job(std::shared_ptr<Core> core) {
    const auto order = core->order;
    core.reset();
    order->next();
  }

  std::shared_ptr<void> ending;  // after the handle's destruction; destroyed after the references
  const std::shared_ptr<OptimizerLayer> layer;
  const LbfgsOptions options;
  const std::vector<rref::ReferencePtr> modules;
  const std::uint64_t number;  // by which the owners identify this optimizer of the agent

  // Only the jobs of the handle, which run one at a time, use the members below.
  const std::shared_ptr<AsyncMutex> order = std::make_shared<AsyncMutex>();
  std::exception_ptr refused;
  bool broken = false;  // the owners no longer have the same step
  bool begun = false;   // a first direction was made
  LbfgsGram gram;
};

// One step in flight: the algorithm of torch::optim::LBFGS, with the vectors on other agents.
class DistLBFGS::Step {
 public:
  // Undoes the failed step.
  static rpc::Task<LBFGSResult> run(std::shared_ptr<Core> core, Closure closure);

 private:
  Step(Core& core, Closure closure) : core_(core), closure_(std::move(closure)) {}

  rpc::Task<void> minimize();
  rpc::Task<void> evaluate(LbfgsEvaluation evaluation);
  rpc::Task<double> search(double t, double slope, double largest);

  Core& core_;
  const Closure closure_;
  LBFGSResult result_;
  bool closure_failed_ = false;
  double loss_ = 0;
  LbfgsMeasures gradient_;
};

rpc::Task<LBFGSResult> DistLBFGS::Step::run(std::shared_ptr<Core> core, Closure closure) {
  if (core->refused != nullptr) std::rethrow_exception(core->refused);
  if (core->broken)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "an owner was lost in an earlier step: create another DistLBFGS");
  Step step(*core, std::move(closure));
  std::exception_ptr failure;
  try {
    co_await step.minimize();
  } catch (...) {
    failure = std::current_exception();
  }
  auto calls =
      failure == nullptr ? core->on_all<&LbfgsService::end_step>() : core->on_all<&LbfgsService::restore>();
  const Answers answers = co_await answers_of(std::move(calls));
  core->broken = !std::all_of(answers.begin(), answers.end(), [](const auto& one) { return one.ok(); });
  if (failure != nullptr) {
    core->gram.clear();
    core->begun = false;
    if (step.closure_failed_ && !core->broken) std::rethrow_exception(failure);
  }
  if (failure != nullptr || core->broken) throw core->error(failure, answers);
  co_return step.result_;
}

rpc::Task<void> DistLBFGS::Step::minimize() {
  const LbfgsOptions& options = core_.options;
  LbfgsEvaluation here;
  here.settle = true;
  co_await evaluate(here);
  result_.loss = loss_;
  while (result_.iterations < options.max_iterations && !(gradient_.largest <= options.tolerance_grad)) {
    ++result_.iterations;
    const LbfgsDirection direction = core_.gram.update(gradient_.products);
    const double slope = core_.gram.slope();
    double t = options.rate * (core_.begun ? 1 : std::min(1., 1 / gradient_.sum));
    core_.begun = true;
    const bool no_descent = slope > -options.tolerance_change;
    const std::vector<double> largest_at =
        co_await rpc::when_all(core_.on_all<&LbfgsService::direct>(direction, t, no_descent));
    const double largest = std::accumulate(largest_at.begin(), largest_at.end(), 0., larger);
    if (no_descent) break;

    const double loss_before = loss_;
    if (options.line_search) {
      t = co_await search(t, slope, largest);
    } else if (result_.iterations < options.max_iterations) {
      co_await evaluate(here);
    }
    if (result_.evaluations >= options.max_evaluations || largest * t <= options.tolerance_change ||
        std::abs(loss_ - loss_before) < options.tolerance_change)
      break;
  }
}

// Evaluates the loss at the present parameters, and the owners' measurements of its gradient.
rpc::Task<void> DistLBFGS::Step::evaluate(LbfgsEvaluation evaluation) {
  std::optional<Evaluation> found;
  try {
    found.emplace(co_await closure_());
  } catch (...) {
    closure_failed_ = true;
    throw;
  }
  ++result_.evaluations;
  loss_ = found->loss;
  evaluation.passes = core_.layer->may_step(found->passes);
  gradient_ = co_await sum_of(core_.on_all<&LbfgsService::take>(evaluation));
}

rpc::Task<double> DistLBFGS::Step::search(double t, double slope, double largest) {
  StrongWolfe search(t, loss_, slope, largest);
  for (;;) {
    LbfgsEvaluation trial;
    trial.point = search.evaluations() + 1;
    trial.keep = search.candidates();
    co_await evaluate(std::move(trial));
    search.evaluated(loss_, gradient_.slope);
    if (search.done()) break;
    co_await rpc::when_all(core_.on_all<&LbfgsService::move>(search.trial()));
  }
  const StrongWolfe::Point best = search.best();
  gradient_ = co_await sum_of(core_.on_all<&LbfgsService::settle>(best.t, best.number));
  loss_ = best.loss;
  co_return best.t;
}

// answers: to the end of the step, or, after a failure, to its undoing.
StepError DistLBFGS::Core::error(const std::exception_ptr& failure, const Answers& answers) const {
  StepError::Objects answered, unknown;
  std::exception_ptr first = failure;
  std::string lost;
  for (std::size_t i = 0; i < answers.size(); ++i) {
    (answers[i].ok() ? answered : unknown).push_back(i);
    if (answers[i].ok()) continue;
    if (first == nullptr) first = answers[i].error();
    lost += "; unknown for module " + std::to_string(i) + " on " + modules[i]->owner().name + ": " +
            rpc::what_of(answers[i].error());
  }
  const std::string what = "a step of L-BFGS over " + std::to_string(answers.size()) + " modules has ";
  if (failure == nullptr)
    return {rpc::error_kind(first), what + "completed on only some of them" + lost, answered, {}, unknown};
  return {rpc::error_kind(first),
          what + "failed and was undone: " + rpc::what_of(failure) + lost,
          {},
          answered,
          unknown};
}

DistLBFGS::DistLBFGS(rpc::Agent& agent, const torch::optim::LBFGSOptions& options,
                     std::vector<rref::ReferencePtr> modules) {
  require(!modules.empty(), "DistLBFGS: no modules, expected at least one");
  core_ =
      std::make_shared<Core>(OptimizerLayer::of(*agent.core()), LbfgsOptions(options), std::move(modules));
  core_->order->run([core = core_]() mutable {
    auto calls = core->on_all<&LbfgsService::attach>(core->options.history_size);
    rpc::when_all(std::move(calls)).then([core = std::move(core)](rpc::Result<void>&& attached) mutable {
      core->refused = attached.error();
      Core::end_job(std::move(core));
    });
  });
}

DistLBFGS::~DistLBFGS() { core_->ending = core_->layer->handle_ends()->begin(); }

rpc::Future<LBFGSResult> DistLBFGS::step(Closure closure) {
  rpc::Promise<LBFGSResult> promise(core_->layer->core()->handlers().exceptions());
  auto future = promise.future();
  core_->order->run([core = core_, closure = std::move(closure), promise = std::move(promise)]() mutable {
    auto& threads = core->layer->core()->handlers();
    auto step = Step::run(core, std::move(closure));
    std::move(step).start(threads).then(
        [core = std::move(core), promise = std::move(promise)](rpc::Result<LBFGSResult>&& result) mutable {
          Core::end_job(std::move(core));
          promise.complete(std::move(result));
        });
  });
  return future;
}

rpc::Future<void> DistLBFGS::attached() {
  rpc::Promise<void> promise(core_->layer->core()->handlers().exceptions());
  auto future = promise.future();
  core_->order->run([core = core_, promise = std::move(promise)]() mutable {
    auto result = core->refused == nullptr ? rpc::Result<void>() : rpc::Result<void>(core->refused);
    Core::end_job(std::move(core));
    promise.complete(std::move(result));
  });
  return future;
}

}  // namespace weft::dist_optim

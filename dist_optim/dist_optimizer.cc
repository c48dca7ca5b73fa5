#include <weft/dist_optim/dist_optimizer.h>
#include <weft/dist_optim/in_order.h>
#include <weft/rpc/core/when_all.h>

namespace weft::dist_optim {
namespace {

// Its owner said so; otherwise what became of a call is not known.
bool answered(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const rpc::RemoteError&) {
    return true;
  } catch (...) {
    return false;
  }
}

// One answer of every module.
template <class T>
using All = std::conditional_t<std::is_void_v<T>, void, std::vector<typename rpc::Result<T>::Value>>;

}  // namespace

// What steps under way share with the handle, and may outlive it.
struct DistOptimizer::Core : std::enable_shared_from_this<DistOptimizer::Core> {
  Core(std::shared_ptr<Context> of, std::vector<Module> of_modules) : context(std::move(of)) {
    for (auto& one : of_modules) modules.push_back(std::move(one.module));
    refused.resize(modules.size());
  }
  // Not before all attaching has ended. What refused this handle may have taken another of this agent's, and
  // would take this for its end.
  ~Core() {
    for (std::size_t i = 0; i < modules.size(); ++i)
      if (!refused[i]) ask<&OptimizerService::detach>(modules[i]).then([](auto&&) {});
  }

  // How attaching ended, for everyone who asks.
  rpc::Future<void> attached();
  void attach_ended(const rpc::Result<void>& result);

  void step(StepRequest request, std::shared_ptr<rpc::Promise<StepResult>> promise);
  void step_ended();
  // Now, or when the steps under way have ended. From within a job of `order`, so that none begins meanwhile.
  void after_steps(rpc::Job job);
  // One call on every module, now; what fails says why attaching failed, where it did.
  template <class T, class Call>
  rpc::Future<All<T>> ask_all(Call call);
  // The same in the handle's order: after the steps before, ahead of those that follow.
  template <class T, class Call>
  rpc::Future<All<T>> ask_all_in_order(Call call);

  const std::shared_ptr<Context> context;
  std::vector<rref::ReferencePtr> modules;
  std::vector<char> refused;  // which of them; known when attaching has ended
  InOrder order;

  std::mutex mutex;  // guards the rest
  std::optional<std::exception_ptr> ended;
  std::vector<rpc::Promise<void>> waiting;
  std::size_t steps_under_way = 0;
  rpc::Job after_last_step;  // one at most: its job holds `order`
};

rpc::Future<void> DistOptimizer::Core::attached() {
  rpc::Promise<void> promise;
  auto future = promise.future();
  std::unique_lock lock(mutex);
  if (!ended) {
    waiting.push_back(std::move(promise));
    return future;
  }
  const std::exception_ptr error = *ended;
  lock.unlock();
  promise.complete(error != nullptr ? rpc::Result<void>(error) : rpc::Result<void>());
  return future;
}

void DistOptimizer::Core::attach_ended(const rpc::Result<void>& result) {
  std::vector<rpc::Promise<void>> to_tell;
  {
    std::lock_guard lock(mutex);
    ended = result.error();
    to_tell = std::exchange(waiting, {});
  }
  for (auto& promise : to_tell) promise.complete(result);
}

void DistOptimizer::Core::step(StepRequest request, std::shared_ptr<rpc::Promise<StepResult>> promise) {
  {
    std::lock_guard lock(mutex);
    ++steps_under_way;
  }
  StepCall::start(
      modules, std::move(request), [self = shared_from_this()] { self->order.next(); },
      [self = shared_from_this(), promise](rpc::Result<StepResult> result) {
        self->step_ended();
        if (result.ok()) return promise->complete(std::move(result));
        // Where attaching failed, that is why.
        self->attached().then([promise, error = result.error()](rpc::Result<void>&& attached) {
          promise->fail(attached.ok() ? error : attached.error());
        });
      });
}

void DistOptimizer::Core::step_ended() {
  rpc::Job job;
  {
    std::lock_guard lock(mutex);
    if (--steps_under_way == 0) job = std::exchange(after_last_step, nullptr);
  }
  if (job) job();
}

void DistOptimizer::Core::after_steps(rpc::Job job) {
  {
    std::lock_guard lock(mutex);
    if (steps_under_way > 0) {
      after_last_step = std::move(job);
      return;
    }
  }
  job();
}

template <class T, class Call>
rpc::Future<All<T>> DistOptimizer::Core::ask_all(Call call) {
  rpc::Promise<All<T>> promise;
  auto future = promise.future();
  std::vector<rpc::Future<T>> calls;
  for (std::size_t i = 0; i < modules.size(); ++i) calls.push_back(call(modules[i], i));
  rpc::when_all(std::move(calls))
      .then([self = shared_from_this(), promise = std::move(promise)](rpc::Result<All<T>>&& result) mutable {
        if (result.ok()) return promise.complete(std::move(result));
        self->attached().then(
            [promise = std::move(promise), result = std::move(result)](rpc::Result<void>&& attached) mutable {
              promise.complete(attached.ok() ? std::move(result) : rpc::Result<All<T>>(attached.error()));
            });
      });
  return future;
}

template <class T, class Call>
rpc::Future<All<T>> DistOptimizer::Core::ask_all_in_order(Call call) {
  rpc::Promise<All<T>> promise;
  auto future = promise.future();
  order.run([self = shared_from_this(), promise = std::move(promise), call = std::move(call)]() mutable {
    self->after_steps([self, promise = std::move(promise), call = std::move(call)]() mutable {
      auto answers = self->ask_all<T>(std::move(call));
      self->order.next();
      std::move(answers).then([promise = std::move(promise)](rpc::Result<All<T>>&& result) mutable {
        promise.complete(std::move(result));
      });
    });
  });
  return future;
}

DistOptimizer::DistOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode,
                             std::vector<rref::ReferencePtr> modules)
    : DistOptimizer(agent, mode, [&] {
        std::vector<Module> all;
        for (auto& module : modules) all.push_back({std::move(module), spec});
        return all;
      }()) {}

DistOptimizer::DistOptimizer(rpc::Agent& agent, StepMode mode, std::vector<Module> modules) {
  check(mode);
  std::vector<OptimizerSpec> specs;
  for (const Module& module : modules) specs.push_back(module.spec);
  core_ = std::make_shared<Core>(Context::of(*agent.core()), std::move(modules));
  // Each object takes its calls in order, so that steps need not wait for the answers.
  std::vector<rpc::Future<void>> attached;
  for (std::size_t i = 0; i < specs.size(); ++i)
    attached.push_back(ask<&OptimizerService::attach>(core_->modules[i], specs[i], mode));
  when_settled(std::move(attached), [core = core_](std::vector<rpc::Result<void>> results) {
    rpc::Result<void> whole;
    for (std::size_t i = results.size(); i-- > 0;) {
      if (results[i].ok()) continue;
      core->refused[i] = answered(results[i].error());
      whole = std::move(results[i]);
    }
    core->attach_ended(whole);
  });
}

DistOptimizer::~DistOptimizer() = default;

rpc::Future<void> DistOptimizer::attached() { return core_->attached(); }

rpc::Future<StepResult> DistOptimizer::step(const dist_autograd::Pass& pass, const StepOptions& options) {
  return step(std::span(&pass, 1), options);
}

rpc::Future<StepResult> DistOptimizer::step(std::span<const dist_autograd::Pass> passes,
                                            const StepOptions& options) {
  auto promise = std::make_shared<rpc::Promise<StepResult>>();
  auto future = promise->future();
  StepRequest request{core_->context->next_step(), {}, options};
  try {
    options.check();
    request.passes = core_->context->may_step(passes);
  } catch (const rpc::Error&) {
    promise->fail(std::current_exception());
    return future;
  }
  core_->order.run([core = core_, request = std::move(request), promise]() mutable {
    core->step(std::move(request), std::move(promise));
  });
  return future;
}

rpc::Future<void> DistOptimizer::set_learning_rate(double rate, std::optional<std::string> group) {
  return core_->ask_all_in_order<void>([rate, group](const rref::ReferencePtr& module, std::size_t) {
    return ask<&OptimizerService::set_learning_rate>(module, rate, group);
  });
}

rpc::Future<DistOptimizerState> DistOptimizer::save_state() {
  return core_
      ->ask_all_in_order<OptimizerState>([](const rref::ReferencePtr& module, std::size_t) {
        return ask<&OptimizerService::save_state>(module);
      })
      .then([](rpc::Result<std::vector<OptimizerState>>&& states) {
        return DistOptimizerState{std::move(states).get()};
      });
}

rpc::Future<void> DistOptimizer::load_state(DistOptimizerState state) {
  if (state.modules.size() != core_->modules.size())
    return rpc::Future<void>::made(std::make_exception_ptr(rpc::Error(
        rpc::ErrorKind::invalid_argument, "the state is that of " + std::to_string(state.modules.size()) +
                                              " modules, not of " + std::to_string(core_->modules.size()))));
  auto states = std::make_shared<const std::vector<OptimizerState>>(std::move(state.modules));
  return core_->ask_all_in_order<void>([states](const rref::ReferencePtr& module, std::size_t i) {
    return ask<&OptimizerService::load_state>(module, (*states)[i]);
  });
}

rpc::Future<std::vector<HostStats>> DistOptimizer::stats() {
  return core_->ask_all<HostStats>(
      [](const rref::ReferencePtr& module, std::size_t) { return ask<&OptimizerService::stats>(module); });
}

}  // namespace weft::dist_optim

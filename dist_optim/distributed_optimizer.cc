#include <weft/dist_optim/distributed_optimizer.h>

#include <weft/dist_autograd/module/internal/module_service.h>
#include <weft/dist_autograd/pass_state.h>
#include <weft/dist_optim/service/internal/async_mutex.h>
#include <weft/dist_optim/service/internal/change_all.h>
#include <weft/dist_optim/service/internal/optimizer_layer.h>
#include <weft/dist_optim/service/internal/optimizer_service.h>
#include <weft/dist_optim/service/internal/step_call.h>
#include <weft/dist_optim/service/stepped_object.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>

namespace weft::dist_optim {
namespace {

// The check of a change that loads the state. Both arguments outlive it.
ObjectChange::Ask check_of(const rref::ReferencePtr& object, const OptimizerState& state) {
  return [&object, &state] { return ask<&OptimizerService::check_state>(object, without_values(state)); };
}

// One reply of every module.
template <class T>
using All = std::conditional_t<std::is_void_v<T>, void, std::vector<typename rpc::Result<T>::Value>>;

}  // namespace

// The data that steps in flight share with the handle; it may outlive the handle.
struct DistributedOptimizer::Core : std::enable_shared_from_this<DistributedOptimizer::Core> {
  Core(std::shared_ptr<OptimizerLayer> of, std::vector<Module> of_modules,
       std::vector<StepParticipant::Ptr> of_others, StepMode of_mode)
      : layer(std::move(of)), mode(of_mode), own_modules(of_modules.size()) {
    for (auto& one : of_modules) modules.push_back(std::move(one.module));
    for (auto& one : of_others) {
      auto objects = one->objects();
      others.push_back({std::move(one), objects.size()});
      modules.insert(modules.end(), objects.begin(), objects.end());
    }
    refused.resize(modules.size());
    numbers.resize(modules.size());
  }
  // The handle is ended only after all attaching has completed. If an owner refused this handle, it may have
  // accepted another handle of this agent, and would mistake this end for the end of that handle.
  ~Core() {
    for (std::size_t i = 0; i < modules.size(); ++i)
      if (!refused[i])
        ask<&OptimizerService::detach>(modules[i], std::optional(handle->trainer)).then([](auto&&) {});
  }

  // The result of attaching, for each caller.
  rpc::Future<void> attached();
  void attach_ended(const rpc::Result<void>& result);

  void admit(StepRequest request, StepCall::Rows rows, std::shared_ptr<rpc::Promise<StepResult>> promise);
  void step(StepRequest request, StepCall::Rows rows, std::shared_ptr<rpc::Promise<StepResult>> promise);
  // The gradients of the passes' rows, for each object.
  StepCall::Rows rows_of(std::span<const dist_autograd::Pass> passes) const;
  // Admits the passes that look up rows of an embedding.
  void admit_lookups();
  void step_ended();
  // Runs the job now, or when the steps in flight have completed. Call it only from a job of `order`, so
  // that no step starts before.
  void after_steps(rpc::Callback job);
  // Calls each of the first `count` objects now. If attaching has failed, an error is replaced by the reason
  // for that failure.
  template <class T, class Call>
  rpc::Future<All<T>> ask_all(Call call, std::size_t count);
  // Like ask_all(), but in the handle's order: after the earlier steps, and before the later steps.
  template <class T, class Call>
  rpc::Future<All<T>> ask_all_in_order(Call call, std::size_t count);
  static rpc::Task<DistSnapshot> snapshot(std::shared_ptr<Core> self, std::vector<rref::ReferencePtr> saved);
  static rpc::Task<void> restore(std::shared_ptr<Core> self, std::string operation,
                                 std::vector<rref::ReferencePtr> modules, DistSnapshot from);
  // Runs a task in the handle's order: later steps wait for the task.
  template <class T, class Make>
  rpc::Future<T> run_in_order(Make make);
  // invalid_argument: the state does not have one entry for each of the handle's modules.
  void check_count(const DistributedOptimizerState& state) const;

  std::shared_ptr<void> ending;  // after the handle's destruction; destroyed after the references
  const std::shared_ptr<OptimizerLayer> layer;
  const StepMode mode;
  struct Other {
    StepParticipant::Ptr participant;
    std::size_t objects;
  };
  std::vector<rref::ReferencePtr> modules;  // the objects: the handle's own modules, then those of `others`
  const std::size_t own_modules;
  std::vector<Other> others;
  std::shared_ptr<const StepParticipant::Admit> admit_pass;  // if there are others
  const std::shared_ptr<PassAdmission::Handle> handle = std::make_shared<PassAdmission::Handle>();
  bool admits_together = false;  // of several objects, or with others
  // Known when attaching has completed.
  std::vector<char> refused;           // by object: whether its owner refused the handle
  std::vector<std::uint64_t> numbers;  // of the objects, each at its owner; 0: not attached
  AsyncMutex order;

  rpc::Mutex mutex;
  std::optional<std::exception_ptr> ended WEFT_GUARDED_BY(mutex);
  std::vector<rpc::Promise<void>> waiting WEFT_GUARDED_BY(mutex);
  std::size_t steps_in_flight WEFT_GUARDED_BY(mutex) = 0;
  rpc::Callback after_last_step WEFT_GUARDED_BY(mutex);  // one at most: its job holds `order`
};

rpc::Future<void> DistributedOptimizer::Core::attached() {
  rpc::Promise<void> promise(layer->core()->handlers().exceptions());
  auto future = promise.future();
  rpc::MutexLock lock(mutex);
  if (!ended) {
    waiting.push_back(std::move(promise));
    return future;
  }
  const std::exception_ptr error = *ended;
  lock.unlock();
  promise.complete(error != nullptr ? rpc::Result<void>(error) : rpc::Result<void>());
  return future;
}

void DistributedOptimizer::Core::attach_ended(const rpc::Result<void>& result) {
  std::vector<rpc::Promise<void>> to_tell;
  {
    rpc::MutexLock lock(mutex);
    ended = result.error();
    to_tell = std::exchange(waiting, {});
  }
  for (auto& promise : to_tell) promise.complete(result);
}

// Under bounded_staleness(k) the passes are admitted to all objects before one of these prepares its part.
void DistributedOptimizer::Core::admit(StepRequest request, StepCall::Rows rows,
                                       std::shared_ptr<rpc::Promise<StepResult>> promise) {
  if (!admits_together || mode.kind != StepMode::Kind::bounded_staleness)
    return step(std::move(request), std::move(rows), std::move(promise));
  std::vector<rpc::Future<void>> passes;
  for (const auto& pass : request.passes) passes.push_back(layer->admission()->admit(pass, handle));
  when_settled(std::move(passes), [self = shared_from_this(), request = std::move(request),
                                   rows = std::move(rows), promise](std::vector<rpc::Result<void>>) mutable {
    self->step(std::move(request), std::move(rows), promise);  // the objects report the errors
  });
}

StepCall::Rows DistributedOptimizer::Core::rows_of(std::span<const dist_autograd::Pass> passes) const {
  StepCall::Rows rows(own_modules);
  for (const Other& one : others)
    for (StepRows& part : one.participant->step_rows(passes, one.objects)) rows.push_back(std::move(part));
  return rows;
}

// Like a module's guard, admits the passes that call it. In `hogwild` the lookups do not wait for their
// admission, because no pass waits.
void DistributedOptimizer::Core::admit_lookups() {
  admit_pass = std::make_shared<const StepParticipant::Admit>(
      [admission = layer->admission(), of = std::weak_ptr(handle),
       waits = mode.kind != StepMode::Kind::hogwild](const dist_autograd::PassId& pass) {
        const auto done = [] { return rpc::Future<void>::made(rpc::Result<void>{}); };
        const auto to = of.lock();
        if (to == nullptr) return done();
        auto admitted = admission->admit(pass, to);
        if (waits) return admitted;
        std::move(admitted).then([](auto&&) {});
        return done();
      });
  for (const Other& one : others) one.participant->admit_with(admit_pass);
}

void DistributedOptimizer::Core::step(StepRequest request, StepCall::Rows rows,
                                      std::shared_ptr<rpc::Promise<StepResult>> promise) {
  {
    rpc::MutexLock lock(mutex);
    ++steps_in_flight;
  }
  StepCall::start(
      StepCall::Modules(shared_from_this(), &modules), std::move(request), std::move(rows),
      [self = shared_from_this()] { self->order.next(); },
      [self = shared_from_this(), promise](rpc::Result<StepResult> result) {
        self->step_ended();
        if (result.ok()) return promise->complete(std::move(result));
        // If attaching has failed, this is the reason.
        self->attached().then([promise, error = result.error()](rpc::Result<void>&& attached) {
          promise->fail(attached.ok() ? error : attached.error());
        });
      });
}

void DistributedOptimizer::Core::step_ended() {
  rpc::Callback job;
  {
    rpc::MutexLock lock(mutex);
    if (--steps_in_flight == 0) job = std::exchange(after_last_step, nullptr);
  }
  if (job) job();
}

void DistributedOptimizer::Core::after_steps(rpc::Callback job) {
  {
    rpc::MutexLock lock(mutex);
    if (steps_in_flight > 0) {
      after_last_step = std::move(job);
      return;
    }
  }
  job();
}

template <class T, class Call>
rpc::Future<All<T>> DistributedOptimizer::Core::ask_all(Call call, std::size_t count) {
  rpc::Promise<All<T>> promise(layer->core()->handlers().exceptions());
  auto future = promise.future();
  std::vector<rpc::Future<T>> calls;
  for (std::size_t i = 0; i < count; ++i) calls.push_back(call(modules[i], i));
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
rpc::Future<All<T>> DistributedOptimizer::Core::ask_all_in_order(Call call, std::size_t count) {
  rpc::Promise<All<T>> promise(layer->core()->handlers().exceptions());
  auto future = promise.future();
  order.run(
      [self = shared_from_this(), promise = std::move(promise), call = std::move(call), count]() mutable {
        self->after_steps([self, promise = std::move(promise), call = std::move(call), count]() mutable {
          auto answers = self->ask_all<T>(std::move(call), count);
          self->order.next();
          std::move(answers).then([promise = std::move(promise)](rpc::Result<All<T>>&& result) mutable {
            promise.complete(std::move(result));
          });
        });
      });
  return future;
}

DistributedOptimizer::DistributedOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode,
                                           std::vector<rref::ReferencePtr> modules)
    : DistributedOptimizer(agent, mode, [&] {
        std::vector<Module> all;
        for (auto& module : modules) all.push_back({std::move(module), spec});
        return all;
      }()) {}

DistributedOptimizer::DistributedOptimizer(rpc::Agent& agent, StepMode mode, std::vector<Module> modules,
                                           std::vector<StepParticipant::Ptr> others,
                                           const std::string& trainer) {
  check(mode);
  std::vector<OptimizerSpec> specs;
  for (const Module& module : modules) specs.push_back(module.spec);
  core_ =
      std::make_shared<Core>(OptimizerLayer::of(*agent.core()), std::move(modules), std::move(others), mode);
  specs.resize(core_->modules.size(), own_optimizer());
  const bool several = core_->modules.size() > 1;
  core_->handle->trainer = trainer;
  for (const auto& module : core_->modules) core_->handle->owners.push_back(module->owner().incarnation);
  core_->admits_together = several || !core_->others.empty();
  if (core_->admits_together) core_->layer->admission()->add(core_->handle);
  if (!core_->others.empty()) core_->admit_lookups();
  // Each object runs its calls in order, so steps need not wait for the replies.
  std::vector<rpc::Future<std::uint64_t>> attached;
  for (std::size_t i = 0; i < specs.size(); ++i)
    attached.push_back(
        ask<&OptimizerService::attach>(core_->modules[i], specs[i], mode, several, std::optional(trainer)));
  when_settled(std::move(attached), [core = core_](std::vector<rpc::Result<std::uint64_t>> results) {
    rpc::Result<void> whole;
    for (std::size_t i = results.size(); i-- > 0;) {
      if (results[i].ok()) {
        core->numbers[i] = results[i].value();
        continue;
      }
      // For an error that the owner of the object has not reported, the result of the call is unknown.
      core->refused[i] = rpc::is_remote(results[i].error());
      whole = results[i].error();
    }
    PassAdmission::Objects objects;
    for (std::size_t i = 0; i < core->modules.size(); ++i)
      if (core->numbers[i] != 0)
        objects.emplace(std::pair(core->modules[i]->owner().incarnation, core->numbers[i]), core->modules[i]);
    core->handle->attached(std::move(objects));
    core->attach_ended(whole);
  });
}

DistributedOptimizer::~DistributedOptimizer() { core_->ending = core_->layer->handle_ends()->begin(); }

rpc::Future<void> DistributedOptimizer::attached() { return core_->attached(); }

rpc::Future<StepResult> DistributedOptimizer::step(const dist_autograd::Pass& pass,
                                                   const StepOptions& options) {
  return step(std::span(&pass, 1), options);
}

rpc::Future<StepResult> DistributedOptimizer::step(std::span<const dist_autograd::Pass> passes,
                                                   const StepOptions& options) {
  auto promise = std::make_shared<rpc::Promise<StepResult>>(core_->layer->core()->handlers().exceptions());
  auto future = promise->future();
  StepRequest request{core_->layer->next_step(), {}, options, {}, core_->handle->trainer};
  StepCall::Rows rows;
  try {
    options.check();
    request.passes = core_->layer->may_step(passes);
    for (const auto& pass : passes)
      if (!pass.state()->had_backward()) request.unseen.push_back(pass.id());
    rows = core_->rows_of(passes);
  } catch (const rpc::Error&) {
    promise->fail(std::current_exception());
    return future;
  }
  core_->order.run([core = core_, request = std::move(request), rows = std::move(rows), promise]() mutable {
    core->admit(std::move(request), std::move(rows), std::move(promise));
  });
  return future;
}

rpc::Future<void> DistributedOptimizer::admit(const dist_autograd::Pass& pass,
                                              std::optional<std::uint64_t> version) {
  rpc::Promise<void> promise(core_->layer->core()->handlers().exceptions());
  auto future = promise.future();
  if (pass.state() == nullptr) {
    promise.fail(std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::failed_precondition, "admit: the pass was released")));
    return future;
  }
  core_->order.run([core = core_, id = pass.id(), version, promise = std::move(promise)]() mutable {
    auto admitted = core->layer->admission()->admit(id, core->handle, version);
    core->order.next();
    std::move(admitted).then([core, promise = std::move(promise)](rpc::Result<void>&& result) mutable {
      if (result.ok()) return promise.complete(std::move(result));
      core->attached().then(
          [promise = std::move(promise), error = result.error()](rpc::Result<void>&& attached) mutable {
            promise.fail(attached.ok() ? error : attached.error());
          });
    });
  });
  return future;
}

rpc::Future<void> DistributedOptimizer::set_mode(StepMode mode) {
  check(mode);
  return core_->ask_all_in_order<void>(
      [mode](const rref::ReferencePtr& module, std::size_t) {
        return ask<&OptimizerService::set_mode>(module, mode);
      },
      core_->modules.size());
}

rpc::Future<void> DistributedOptimizer::set_learning_rate(double rate, std::optional<std::string> group) {
  return core_->ask_all_in_order<void>(
      [rate, group](const rref::ReferencePtr& module, std::size_t) {
        return ask<&OptimizerService::set_learning_rate>(module, rate, group);
      },
      core_->own_modules);
}

rpc::Future<DistributedOptimizerState> DistributedOptimizer::save_state() {
  return core_
      ->ask_all_in_order<OptimizerState>(
          [](const rref::ReferencePtr& module, std::size_t) {
            return ask<&OptimizerService::save_state>(module);
          },
          core_->own_modules)
      .then([](rpc::Result<std::vector<OptimizerState>>&& states) {
        return DistributedOptimizerState{std::move(states).get()};
      });
}

namespace {

// The calls to one owner wait for each other: if one has failed, the others must fail, too.
rpc::Future<std::vector<ModuleSnapshot>> ask_snapshots(const std::vector<rref::ReferencePtr>& saved,
                                                       std::uint64_t number) {
  std::map<rpc::AgentId, std::uint64_t> modules_of;
  for (const auto& module : saved) ++modules_of[module->owner()];
  const auto abort_all = [saved, number, given_up = std::make_shared<std::atomic<bool>>(false)] {
    if (given_up->exchange(true)) return;
    for (const auto& module : saved)
      ask<&OptimizerService::abort_snapshot>(module, number).then([](auto&&) {});
  };
  std::vector<rpc::Future<ModuleSnapshot>> asked;
  for (const auto& module : saved) {
    std::optional<SnapshotGroup> group;
    if (const auto modules = modules_of[module->owner()]; modules > 1) group = SnapshotGroup{number, modules};
    asked.push_back(ask<&OptimizerService::snapshot>(module, group));
  }
  // Not before all calls are made: each object must see the call before its abort.
  for (auto& one : asked)
    one = std::move(one).then([abort_all](rpc::Result<ModuleSnapshot>&& snapshot) {
      if (!snapshot.ok()) abort_all();
      return std::move(snapshot);
    });
  return rpc::when_all(std::move(asked));
}

}  // namespace

// The state of a module that is saved is read with the module, so that both are of one version. The states of
// other modules are read separately. A module that no handle of this agent steps has a state only if it is
// one of this handle's modules.
rpc::Task<DistSnapshot> DistributedOptimizer::Core::snapshot(std::shared_ptr<Core> self,
                                                             std::vector<rref::ReferencePtr> saved) {
  co_await self->attached();
  auto asked = ask_snapshots(saved, self->layer->next_step());
  std::vector<ModuleSnapshot> parts = co_await std::move(asked);
  DistSnapshot whole;
  for (std::size_t i = 0; i < self->own_modules; ++i) {
    const ModuleSnapshot* found = nullptr;
    for (std::size_t j = 0; j < parts.size(); ++j)
      if (parts[j].object == self->numbers[i] && saved[j]->owner() == self->modules[i]->owner())
        found = &parts[j];
    if (found != nullptr) {
      whole.optimizer.modules.push_back(found->optimizer);
    } else {
      whole.optimizer.modules.push_back(co_await ask<&OptimizerService::save_state>(self->modules[i]));
    }
  }
  for (ModuleSnapshot& part : parts) whole.modules.push_back(std::move(part.module));
  co_return whole;
}

// The state is sent with the module that it belongs to, so that both are one change.
rpc::Task<void> DistributedOptimizer::Core::restore(std::shared_ptr<Core> self, std::string operation,
                                                    std::vector<rref::ReferencePtr> modules,
                                                    DistSnapshot from) {
  co_await self->attached();
  std::vector<rpc::Future<std::uint64_t>> asked;
  for (const auto& module : modules) asked.push_back(ask<&OptimizerService::number>(module));
  auto all = rpc::when_all(std::move(asked));
  const std::vector<std::uint64_t> found = co_await std::move(all);
  std::vector<bool> restored(self->own_modules);
  std::vector<ObjectChange> changes;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    ObjectChange change{.object = modules[i], .name = "module " + std::to_string(i)};
    change.checks.push_back([&, i] {
      return ask<&dist_autograd::ModuleService::check_state_dict>(modules[i], without_values(from.modules[i]),
                                                                  true);
    });
    std::optional<OptimizerState> state;
    for (std::size_t j = 0; j < self->own_modules && !state; ++j) {
      if (found[i] != self->numbers[j] || !(modules[i]->owner() == self->modules[j]->owner())) continue;
      state = from.optimizer.modules[j];
      restored[j] = true;
      change.checks.push_back(check_of(modules[i], from.optimizer.modules[j]));
    }
    change.apply = [&, i, state] {
      return ask<&OptimizerService::restore>(modules[i], from.modules[i], state);
    };
    changes.push_back(std::move(change));
  }
  for (std::size_t j = 0; j < self->own_modules; ++j) {
    if (restored[j]) continue;
    const rref::ReferencePtr& module = self->modules[j];
    const OptimizerState& state = from.optimizer.modules[j];
    changes.push_back(
        {module, "the optimizer of module " + std::to_string(j), {check_of(module, state)}, [&] {
           return ask<&OptimizerService::load_state>(module, state);
         }});
  }
  auto changed = change_all(std::move(operation), std::move(changes));
  co_await std::move(changed);
}

template <class T, class Make>
rpc::Future<T> DistributedOptimizer::Core::run_in_order(Make make) {
  rpc::Promise<T> promise(layer->core()->handlers().exceptions());
  auto future = promise.future();
  order.run([self = shared_from_this(), promise = std::move(promise), make = std::move(make)]() mutable {
    self->after_steps([self, promise = std::move(promise), make = std::move(make)]() mutable {
      make(self)
          .start(self->layer->core()->handlers())
          .then([self, promise = std::move(promise)](rpc::Result<T>&& result) mutable {
            self->order.next();
            promise.complete(std::move(result));
          });
    });
  });
  return future;
}

rpc::Future<DistSnapshot> DistributedOptimizer::snapshot(std::vector<rref::ReferencePtr> modules) {
  return core_->run_in_order<DistSnapshot>(
      [modules = std::move(modules)](const std::shared_ptr<Core>& core) mutable {
        return Core::snapshot(core, std::move(modules));
      });
}

rpc::Future<void> DistributedOptimizer::restore(std::vector<rref::ReferencePtr> modules,
                                                DistSnapshot snapshot) {
  try {
    core_->check_count(snapshot.optimizer);
    if (snapshot.modules.size() != modules.size())
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "restore: the snapshot has " + std::to_string(snapshot.modules.size()) +
                           " modules, expected " + std::to_string(modules.size()));
  } catch (const rpc::Error&) {
    return rpc::Future<void>::made(std::current_exception());
  }
  return core_->run_in_order<void>([modules = std::move(modules), snapshot = std::move(snapshot)](
                                       const std::shared_ptr<Core>& core) mutable {
    return Core::restore(core, "restore", std::move(modules), std::move(snapshot));
  });
}

void DistributedOptimizer::Core::check_count(const DistributedOptimizerState& state) const {
  if (state.modules.size() != own_modules)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "the optimizer's state has " + std::to_string(state.modules.size()) +
                         " modules, expected " + std::to_string(own_modules));
}

rpc::Future<void> DistributedOptimizer::load_state(DistributedOptimizerState state) {
  try {
    core_->check_count(state);
  } catch (const rpc::Error&) {
    return rpc::Future<void>::made(std::current_exception());
  }
  return core_->run_in_order<void>([state = std::move(state)](const std::shared_ptr<Core>& core) mutable {
    return Core::restore(core, "load_state", {}, {{}, std::move(state)});
  });
}

rpc::Future<std::vector<OwnerStats>> DistributedOptimizer::stats() {
  return core_->ask_all<OwnerStats>(
      [](const rref::ReferencePtr& module, std::size_t) { return ask<&OptimizerService::stats>(module); },
      core_->modules.size());
}

}  // namespace weft::dist_optim

#include <weft/dist_optim/service/internal/optimizer_service.h>

#include <weft/dist_autograd/module/internal/module_service.h>
#include <weft/dist_autograd/pass_state.h>
#include <weft/dist_optim/local/internal/row_tensors.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rref/rref_layer.h>

#include <torch/nn/module.h>

#include <algorithm>
#include <atomic>
#include <functional>

namespace weft::dist_optim {
namespace {

std::string calling_trainer(rpc::CallContext& call, const std::optional<std::string>& name = {}) {
  return trainer_of(call.peer().id, name.value_or(""));
}

using Prepared = std::function<void(rpc::Result<StepPart>)>;

// The gradients of a shard's rows, by pass. The first pass that looked rows up gets the sum over all passes.
// Each other such pass gets a gradient without rows, so that its version is checked.
std::vector<PassGradients> gradients_of(const StepRequest& request, const StepRows& rows) {
  std::vector<PassGradients> all;
  at::Tensor sum = row_gradient(rows.ids, rows.gradients);
  for (const auto& id : request.passes) {
    PassGradients one{key_of(id), {}};
    const bool looked_up = std::find(rows.passes.begin(), rows.passes.end(), id) != rows.passes.end();
    if (looked_up && rows.ids.numel() > 0) {
      one.gradients.emplace(0, sum);
      sum = row_gradient(rows.ids.slice(0, 0, 0), rows.gradients.slice(0, 0, 0));
    }
    all.push_back(std::move(one));
  }
  return all;
}

// Collects the passes' gradients for this object and prepares the step with them, once the passes are
// admitted.
void prepare_step(OptimizerLayer& layer, const std::shared_ptr<OwnedParametersGuard>& guard,
                  const std::string& trainer, const StepRequest& request, const std::optional<StepRows>& rows,
                  Prepared done) {
  OwnedParameters& owned = guard->owned();
  std::vector<std::uint32_t> found;  // a trainer has seen the backward of a pass with rows
  auto gradients = std::make_shared<std::vector<PassGradients>>();
  std::vector<std::shared_ptr<dist_autograd::PassState>> open;
  if (rows) {
    rpc::Result<std::vector<PassGradients>> all = rpc::capture([&] { return gradients_of(request, *rows); });
    if (!all.ok()) return done(all.error());
    *gradients = std::move(all).get();
  }
  for (std::size_t i = 0; !rows && i < request.passes.size(); ++i) {
    const auto& id = request.passes[i];
    rpc::Result<OptimizerLayer::PassPart> part = rpc::capture([&] { return layer.part_of(id, owned); });
    if (!part.ok()) return done(part.error());
    const bool none = part.value().gradients.empty();
    const auto unseen = std::find(request.unseen.begin(), request.unseen.end(), id);
    if (!none && unseen != request.unseen.end())
      found.push_back(static_cast<std::uint32_t>(unseen - request.unseen.begin()));
    gradients->push_back({key_of(id), std::move(part.value().gradients)});
    if (!none) open.push_back(part.value().pass);
  }

  struct Wait {
    std::atomic<std::size_t> open;
    rpc::Mutex mutex;
    std::exception_ptr error WEFT_GUARDED_BY(mutex);
    tensor::StreamMarks ready;  // the gradients, on this thread's streams; the step runs on any thread
  };
  auto wait = std::make_shared<Wait>();
  for (const PassGradients& one : *gradients)
    for (const auto& [index, gradient] : one.gradients) wait->ready.note(gradient);
  wait->open = 1 + static_cast<std::size_t>(std::count_if(gradients->begin(), gradients->end(),
                                                          [](auto& one) { return !one.gradients.empty(); }));
  const auto admitted = [wait, guard, gradients, trainer, request, found = std::move(found),
                         done = std::move(done)](const std::exception_ptr& error) {
    if (error != nullptr) {
      rpc::MutexLock lock(wait->mutex);
      wait->error = error;
    }
    if (--wait->open != 0) return;
    std::exception_ptr refused;
    {
      rpc::MutexLock lock(wait->mutex);
      refused = wait->error;
    }
    if (refused != nullptr) return done(refused);
    done(rpc::capture([&] {
      for (const PassGradients& one : *gradients)
        for (const auto& [index, gradient] : one.gradients) wait->ready.pass_on(gradient);
      StepPart part = guard->owned().prepare(trainer, request.number, std::move(*gradients), request.options,
                                             request.passes.size());
      part.found = found;
      return part;
    }));
  };
  // If only its owner's own code reads a module (a trainer's head), the module has received no call that
  // admitted its pass.
  std::vector<PassKey> keys;
  for (const PassGradients& one : *gradients)
    if (!one.gradients.empty()) keys.push_back(one.pass);
  for (const PassKey& key : keys) owned.admit(trainer, key, admitted);
  // After the admission, because on_end() runs the job at once if the pass has ended meanwhile. A shard's
  // passes belong only to the trainer, which releases them.
  for (std::size_t i = 0; i < open.size(); ++i)
    open[i]->on_end([guard, key = keys[i]] { guard->owned().release(key); });
  admitted(nullptr);
}

// Whether the caller is lost. Its trainers may have been removed before the handler ran; then the handler
// itself undoes its changes.
bool caller_is_gone(rpc::CallContext& call) {
  return rpc::AgentCore::of(call)->sessions().is_gone(call.peer().id);
}

// A peer may open and end the passes that it created, and the passes that its trainers step.
void check_own(rpc::CallContext& call, const dist_autograd::PassId& pass, const std::string& trainer) {
  if (origin_of(pass, *call.host()) == call.peer().id || is_trainer_of(trainer, call.peer().id)) return;
  throw rpc::Error(rpc::ErrorKind::invalid_argument,
                   to_string(pass) + " is not a pass of " + call.peer().id.name);
}

}  // namespace

std::uint64_t OptimizerService::attach(rpc::CallContext& call, OptimizerSpec spec, StepMode mode, bool asks,
                                       Trainer name) {
  check(mode);
  const auto guard = layer->guard_of(call);
  const std::string trainer = calling_trainer(call, name);
  const std::string& agent = call.peer().id.name;
  guard->owned().register_trainer(trainer, spec, mode,
                                  name.value_or("").empty() ? agent : agent + "/" + *name);
  guard->owned().adopt_passes(trainer_of({{}, call.peer().id.incarnation}), trainer_of(call.peer().id));
  if (asks) guard->ask_trainer(call.peer().id, trainer);
  if (caller_is_gone(call))
    layer->peer_gone(call.peer().id, rpc::Error(rpc::ErrorKind::peer_lost, agent + " is gone"));
  return guard->number();
}

void OptimizerService::detach(rpc::CallContext& call, Trainer name) {
  OwnedParameters& owned = layer->guard_of(call)->owned();
  owned.strike_off(calling_trainer(call, name), false);
  owned.close_rounds();
}

rpc::Future<void> OptimizerService::admit(rpc::CallContext& call, dist_autograd::PassId pass, Trainer name,
                                          std::optional<std::uint64_t> version) {
  const auto guard = layer->guard_of(call);
  const std::string trainer = calling_trainer(call, name);
  check_own(call, pass, guard->owned().is_registered(trainer) ? trainer : "");
  auto promise = std::make_shared<rpc::Promise<void>>();
  auto future = promise->future();
  if (!version && guard->owned().status(key_of(pass)).has_stepped) {
    promise->complete(rpc::Result<void>{});
    return future;
  }
  guard->owned().admit(
      trainer, key_of(pass),
      [promise, guard](const std::exception_ptr& error) {
        promise->complete(error == nullptr ? rpc::Result<void>{} : rpc::Result<void>(error));
      },
      version);
  if (caller_is_gone(call)) guard->owned().release(key_of(pass));
  return future;
}

void OptimizerService::release(rpc::CallContext& call, dist_autograd::PassId pass) {
  OwnedParameters& owned = layer->guard_of(call)->owned();
  check_own(call, pass, owned.status(key_of(pass)).trainer.value_or(""));
  owned.release(key_of(pass));
}

rpc::Future<void> OptimizerService::admit_everywhere(rpc::CallContext& call, dist_autograd::PassId pass,
                                                     std::uint64_t object) {
  return layer->admission()->admit(pass, call.peer().id, object);
}

rpc::Future<StepOutcome> OptimizerService::step(rpc::CallContext& call, StepRequest request,
                                                std::uint64_t objects, std::optional<StepRows> rows) {
  auto promise = std::make_shared<rpc::Promise<StepOutcome>>();
  auto future = promise->future();
  const std::string trainer = calling_trainer(call, request.trainer);
  const auto give_up = [steps = layer->local_steps(), trainer, number = request.number] {
    steps->abort(trainer, number);
  };
  const auto arrive = [steps = layer->local_steps(), promise, trainer, request, objects, give_up,
                       call = call.shared_from_this()](std::shared_ptr<OwnedParametersGuard> guard,
                                                       rpc::Result<StepPart> part) {
    steps->arrive(trainer, request, objects, {std::move(guard), std::move(part), promise});
    if (call->cancelled()) give_up();
  };
  call.on_cancel(give_up);  // the trainer is gone, or waits no longer: the other objects are not needed
  std::shared_ptr<OwnedParametersGuard> guard;
  try {
    guard = layer->guard_of(call);
  } catch (...) {
    arrive(nullptr, std::current_exception());  // the other objects must be notified
    return future;
  }
  prepare_step(*layer, guard, trainer, request, rows,
               [arrive, guard](rpc::Result<StepPart> part) { arrive(guard, std::move(part)); });
  return future;
}

rpc::Future<StepPart> OptimizerService::prepare(rpc::CallContext& call, StepRequest request,
                                                std::optional<StepRows> rows) {
  auto promise = std::make_shared<rpc::Promise<StepPart>>();
  auto future = promise->future();
  prepare_step(*layer, layer->guard_of(call), calling_trainer(call, request.trainer), request, rows,
               [promise](rpc::Result<StepPart> part) { promise->complete(std::move(part)); });
  return future;
}

rpc::Future<std::uint64_t> OptimizerService::commit(rpc::CallContext& call, std::uint64_t number,
                                                    StepDecision decision, Trainer trainer) {
  auto promise = std::make_shared<rpc::Promise<std::uint64_t>>();
  auto future = promise->future();
  const auto guard = layer->guard_of(call);
  guard->owned().commit(calling_trainer(call, trainer), number, decision,
                        [promise, guard](std::exception_ptr error, OwnedParameters::Version version) {
                          if (error != nullptr) return promise->fail(error);
                          promise->complete(version);
                        });
  return future;
}

void OptimizerService::abort(rpc::CallContext& call, std::uint64_t number, Trainer name) {
  const std::string trainer = calling_trainer(call, name);
  layer->local_steps()->abort(trainer, number);
  layer->guard_of(call)->owned().abort(trainer, number);
}

void OptimizerService::set_learning_rate(rpc::CallContext& call, double rate,
                                         std::optional<std::string> group) {
  layer->guard_of(call)->owned().optimizer().set_learning_rate(rate, group);
}

void OptimizerService::set_mode(rpc::CallContext& call, StepMode mode) {
  check(mode);
  layer->guard_of(call)->owned().set_mode(mode);
}

OptimizerState OptimizerService::save_state(rpc::CallContext& call) {
  return layer->guard_of(call)->owned().optimizer().state();
}

void OptimizerService::load_state(rpc::CallContext& call, OptimizerState state) {
  layer->guard_of(call)->owned().optimizer().set_state(state);
}

void OptimizerService::check_state(rpc::CallContext& call, OptimizerState state) {
  layer->guard_of(call)->owned().optimizer().check_state(state);
}

namespace {

// The module of the call, and its guard if an optimizer has stepped it. The call keeps both.
std::pair<torch::nn::Module*, std::shared_ptr<OwnedParametersGuard>> module_of(rpc::CallContext& call) {
  const auto* target = call.slots().find<rref::RRefLayer::Target>();
  auto* module = target == nullptr ? nullptr : target->object->as<torch::nn::Module>();
  if (module == nullptr)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     std::string(call.method()) + ": expected an RRef to a torch::nn::Module, not " +
                         (target == nullptr ? "a call without an object"
                                            : "an object of type " + target->object->value().type->name));
  return {module, std::dynamic_pointer_cast<OwnedParametersGuard>(target->object->guard())};
}

}  // namespace

ModuleSnapshot take_snapshot(const torch::nn::Module& module,
                             const std::shared_ptr<OwnedParametersGuard>& guard) {
  ModuleSnapshot snapshot;
  const auto copy = [&] { snapshot.module = dist_autograd::copy_state(module); };
  if (guard == nullptr) {
    copy();
    return snapshot;
  }
  OwnerState state = guard->owned().snapshot(copy);
  snapshot.version = state.version;
  if (state.spec.name.empty()) return snapshot;
  snapshot.object = guard->number();
  snapshot.spec = std::move(state.spec);
  snapshot.optimizer = std::move(state.optimizer);
  return snapshot;
}

rpc::Future<tensor::OnStreams<ModuleSnapshot>> OptimizerService::snapshot(
    rpc::CallContext& call, std::optional<SnapshotGroup> group) {
  using Taken = tensor::OnStreams<ModuleSnapshot>;
  auto promise = std::make_shared<rpc::Promise<Taken>>();
  auto future = promise->future();
  if (!group) {
    const auto [module, guard] = module_of(call);
    promise->complete(Taken(take_snapshot(*module, guard)));
    return future;
  }
  const auto snapshots = layer->local_snapshots();
  const LocalSnapshots::Key key{calling_trainer(call), group->number};
  call.on_cancel([snapshots, key] { snapshots->abort(key); });
  try {
    const auto [module, guard] = module_of(call);
    auto taken = std::make_shared<std::optional<Taken>>();
    snapshots->arrive(key, group->modules,
                      {guard,
                       [taken, of = module, owned = guard, call = call.shared_from_this()] {
                         taken->emplace(take_snapshot(*of, owned));
                       },
                       [taken, promise](const std::exception_ptr& error) {
                         if (error != nullptr) return promise->fail(error);
                         promise->complete(std::move(**taken));
                       }});
  } catch (...) {
    snapshots->arrive(key, group->modules, {});  // the other modules need not wait
    throw;
  }
  if (call.cancelled()) snapshots->abort(key);
  return future;
}

void OptimizerService::abort_snapshot(rpc::CallContext& call, std::uint64_t number) {
  layer->local_snapshots()->abort({calling_trainer(call), number});
}

std::uint64_t OptimizerService::number(rpc::CallContext& call) {
  const auto guard = module_of(call).second;
  return guard == nullptr || !guard->owned().optimizer().exists() ? 0 : guard->number();
}

void OptimizerService::restore(rpc::CallContext& call, dist_autograd::StateDict module,
                               std::optional<OptimizerState> optimizer) {
  const auto [to, guard] = module_of(call);
  const auto checked = dist_autograd::check_state(*to, module, true);
  if (guard == nullptr && optimizer)
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "restore: the snapshot has an optimizer's state, but no optimizer is attached to the module");
  if (guard == nullptr) return checked.copy(false);
  guard->owned().change([&] { checked.copy(true); }, optimizer ? &*optimizer : nullptr);
}

OwnerStats OptimizerService::stats(rpc::CallContext& call) { return layer->guard_of(call)->owned().stats(); }

}  // namespace weft::dist_optim

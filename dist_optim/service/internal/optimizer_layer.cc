#include <weft/dist_optim/service/internal/optimizer_layer.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_optim/service/internal/optimizer_service.h>
#include <weft/dist_optim/service/stepped_object.h>
#include <weft/rref/rref_layer.h>

#include <torch/nn/module.h>

#include <algorithm>

namespace weft::dist_optim {

constexpr auto leaving_timeout = std::chrono::seconds{5};  // with owners that do not answer

static std::exception_ptr shut_down_error() {
  return std::make_exception_ptr(rpc::Error(rpc::ErrorKind::shut_down, "this agent has shut down"));
}

std::shared_ptr<OptimizerLayer> OptimizerLayer::of(const rpc::CallHost& host) {
  auto layer = host.layers().share<OptimizerLayer>();
  if (layer == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "this agent was created without distributed optimizers: pass "
                     "dist_optim::layers() to its constructor");
  return layer;
}

std::shared_ptr<OwnedParametersGuard> OptimizerLayer::guard_of(rref::StoredObject& object) {
  if (auto known = std::dynamic_pointer_cast<OwnedParametersGuard>(object.guard())) return known;
  auto* module = object.as<torch::nn::Module>();
  // Kept by the guard, which may outlive the object's entry.
  const std::shared_ptr<SteppedObject> own(object.value().value,
                                           module == nullptr ? object.as<SteppedObject>() : nullptr);
  if (module == nullptr && own == nullptr)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "an optimizer steps torch::nn modules and embeddings, not objects of type " +
                         object.value().type->name);
  std::shared_ptr<OwnedParametersGuard> fresh;
  auto guard = object.attach_guard([&] {
    fresh = module != nullptr ? std::make_shared<OwnedParametersGuard>(parameters_of(*module), ++guards_made_)
                              : std::make_shared<OwnedParametersGuard>(target_maker(own), ++guards_made_);
    return fresh;
  });
  auto found = std::dynamic_pointer_cast<OwnedParametersGuard>(guard);
  if (found == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "an optimizer cannot attach to this object: another layer guards its calls");
  if (fresh != nullptr) {
    rpc::MutexLock lock(mutex_);
    std::erase_if(guards_, [](const auto& weak) { return weak.expired(); });
    guards_.push_back(fresh);
    if (core_->ended()) fresh->owned().end(shut_down_error());
  }
  return found;
}

std::shared_ptr<OwnedParametersGuard> OptimizerLayer::guard_of(rpc::CallContext& call) {
  const auto* target = call.slots().find<rref::RRefLayer::Target>();
  if (target == nullptr)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     std::string(call.method()) + ": the call names no object behind an RRef");
  return guard_of(*target->object);
}

OptimizerLayer::PassPart OptimizerLayer::part_of(const dist_autograd::PassId& pass,
                                                 const OwnedParameters& owned) const {
  const auto autograd = dist_autograd::AutogradLayer::of(*core_);
  PassPart part{autograd->find_if_known(pass), {}};
  // An ended pass has lost its gradients. A step without them is not the step that the trainer requested.
  if (part.pass == nullptr && autograd->has_ended(pass))
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     to_string(pass) + " cannot step: it has failed here or was released");
  const auto& parameters = owned.parameters();
  for (std::size_t i = 0; part.pass != nullptr && i < parameters.size(); ++i)
    if (at::Tensor gradient = part.pass->gradient(parameters[i].tensor); gradient.defined())
      part.gradients.emplace(i, std::move(gradient));
  return part;
}

std::vector<dist_autograd::PassId> OptimizerLayer::may_step(
    std::span<const dist_autograd::Pass> passes) const {
  const auto autograd = dist_autograd::AutogradLayer::of(*core_);
  std::vector<dist_autograd::PassId> ids;
  for (const auto& pass : passes) {
    if (pass.state() == nullptr)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "step: a pass was released: its gradients no longer exist");
    if (autograd->find_if_known(pass.id()) == nullptr) {
      pass.state()->check_alive();  // throws its error, for example a lost worker
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       to_string(pass.id()) + " cannot step: it has failed or was released");
    }
    ids.push_back(pass.id());
  }
  return ids;
}

std::vector<std::shared_ptr<OwnedParametersGuard>> OptimizerLayer::guards() {
  std::vector<std::shared_ptr<OwnedParametersGuard>> guards;
  rpc::MutexLock lock(mutex_);
  for (const auto& weak : guards_)
    if (auto guard = weak.lock()) guards.push_back(std::move(guard));
  return guards;
}

// Not while a step over several objects is being applied. Otherwise the objects that it has reached would
// have the step. If its trainer or another one of the round is removed before, the other objects would not
// have it.
void OptimizerLayer::peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) {
  const auto all = guards();
  const bool died = reason.kind() != rpc::ErrorKind::shut_down;
  local_steps_->hold(all, [all, died, peer, steps = local_steps_, core = core_](std::uint64_t hold) {
    for (const auto& guard : all)
      for (const std::string& one : guard->owned().trainers())
        if (is_trainer_of(one, peer)) guard->owned().strike_off(one, died);
    // This may run on a loop, and a step may take long.
    core->handlers().post([all, steps, hold] {
      steps->release(hold);
      for (const auto& guard : all) guard->owned().close_rounds();
    });
  });
}

void OptimizerLayer::shut_down() {
  for (const auto& guard : guards()) guard->owned().end(shut_down_error());
}

rpc::Future<void> OptimizerLayer::leaving() {
  auto ended = handle_ends_->all_ended();
  auto loop = core_->pick_loop();
  loop->post([loop, ends = std::weak_ptr(handle_ends_)] {
    loop->schedule(loop->now() + leaving_timeout, [ends] {
      if (const auto still = ends.lock()) still->give_up();
    });
  });
  return ended;
}

void install_optimizers(rpc::Agent& agent) {
  auto layer = std::make_shared<OptimizerLayer>(agent.core());
  agent.core()->layers().put(layer);
  agent.core()->hooks().add(layer);
  auto service = std::make_shared<OptimizerService>();
  service->layer = layer.get();
  agent.serve(service);
}

}  // namespace weft::dist_optim

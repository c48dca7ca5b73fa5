// A restore checks and converts everything first. Then it enters the modules' gates, one within the other, in
// the order of the guards' addresses (as snapshots and backwards do), and each owner checks its state. Only
// when the last gate is entered and the last state is accepted, values are copied, and that cannot fail.
#include <weft/dist_optim/owner_snapshot.h>

#include <weft/dist_autograd/module/internal/module_service.h>
#include <weft/dist_optim/service/internal/optimizer_service.h>
#include <weft/rref/rref_layer.h>

#include <algorithm>
#include <span>

#include <torch/nn/module.h>

namespace weft::dist_optim {
namespace {

using Objects = std::vector<std::shared_ptr<rref::StoredObject>>;

// The modules of this agent behind the references.
rpc::Future<std::shared_ptr<rref::StoredObject>> object_of(const rref::ReferencePtr& reference) {
  auto promise = std::make_shared<rpc::Promise<std::shared_ptr<rref::StoredObject>>>();
  auto future = promise->future();
  reference->layer()->when_alive(
      reference, [promise](rref::StoredObjects::Found object) { promise->complete(std::move(object)); });
  return future;
}

rpc::Task<Objects> own_modules(std::vector<rref::ReferencePtr> references) {
  Objects objects;
  for (std::size_t i = 0; i < references.size(); ++i) {
    const std::string name = "module " + std::to_string(i) + " of an owner's snapshot ";
    if (!references[i]->is_owner())
      throw rpc::Error(rpc::ErrorKind::invalid_argument, name + "lives on " + references[i]->owner().name +
                                                             ": call take and restore on that agent");
    objects.push_back(co_await object_of(references[i]));
    if (objects.back()->as<torch::nn::Module>() == nullptr)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, name + "is not a torch::nn::Module");
    if (std::count(objects.begin(), objects.end(), objects.back()) > 1)
      throw rpc::Error(rpc::ErrorKind::invalid_argument, name + "occurs twice");
  }
  co_return objects;
}

using Taken = tensor::OnStreams<OwnerSnapshot>;

rpc::Future<Taken> take_all(OptimizerLayer& layer, const Objects& objects) {
  if (objects.empty()) return rpc::Future<Taken>::made(Taken(OwnerSnapshot{}));
  struct Taking {
    OwnerSnapshot snapshot;
    std::size_t read = 0;
    std::optional<Taken> taken;
    rpc::Promise<Taken> promise;
  };
  auto taking = std::make_shared<Taking>();
  taking->snapshot.modules.resize(objects.size());
  auto future = taking->promise.future();
  const LocalSnapshots::Key key{trainer_of(layer.core()->id()), layer.next_step()};
  for (std::size_t i = 0; i < objects.size(); ++i) {
    LocalSnapshots::Object part;
    part.guard = std::dynamic_pointer_cast<OwnedParametersGuard>(objects[i]->guard());
    part.read = [taking, i, object = objects[i]] {
      taking->snapshot.modules[i] = take_module(*object);
      if (++taking->read == taking->snapshot.modules.size())  // on the thread whose streams made the copies
        taking->taken.emplace(std::move(taking->snapshot));
    };
    if (i == 0)  // all end together
      part.done = [taking](const std::exception_ptr& error) {
        if (error != nullptr) return taking->promise.fail(error);
        taking->promise.complete(std::move(*taking->taken));
      };
    layer.local_snapshots()->arrive(key, objects.size(), std::move(part));
  }
  return future;
}

rpc::Task<Taken> take(std::shared_ptr<OptimizerLayer> layer, std::vector<rref::ReferencePtr> references) {
  const Objects objects = co_await own_modules(std::move(references));
  co_return co_await take_all(*layer, objects);
}

struct Restoring {
  std::shared_ptr<OwnedParametersGuard> guard;
  dist_autograd::CheckedState values;
  OwnerState state;
};

void restore_all(std::span<Restoring> modules) {
  if (modules.empty()) return;
  Restoring& first = modules.front();
  first.guard->owned().restore(first.state, [&] {
    restore_all(modules.subspan(1));
    first.values.copy(true);
  });
}

void restore_now(OptimizerLayer& layer, const Objects& objects, OwnerSnapshot snapshot) {
  if (objects.size() != snapshot.modules.size())
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "restore: the snapshot has " + std::to_string(snapshot.modules.size()) +
                         " modules, expected " + std::to_string(objects.size()));
  const at::NoGradGuard no_grad;
  std::vector<Restoring> modules;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    ModuleSnapshot& from = snapshot.modules[i];
    Restoring one{layer.guard_of(*objects[i]),
                  dist_autograd::check_state(*objects[i]->as<torch::nn::Module>(), from.module, true),
                  {from.version, std::move(from.spec), std::move(from.optimizer)}};
    for (auto& [to, value] : one.values.copies)
      value = value.to(to.device(), to.scalar_type());  // this may fail, a copy of the same type does not
    modules.push_back(std::move(one));
  }
  std::sort(modules.begin(), modules.end(),
            [](const Restoring& a, const Restoring& b) { return std::less<>()(a.guard, b.guard); });
  restore_all(modules);
}

rpc::Task<void> restore(std::shared_ptr<OptimizerLayer> layer, std::vector<rref::ReferencePtr> references,
                        OwnerSnapshot snapshot) {
  const Objects objects = co_await own_modules(std::move(references));
  restore_now(*layer, objects, std::move(snapshot));
}

}  // namespace

rpc::Future<tensor::OnStreams<OwnerSnapshot>> take_owner_snapshot(rpc::Agent& agent,
                                                                  std::vector<rref::ReferencePtr> modules) {
  return take(OptimizerLayer::of(*agent.core()), std::move(modules)).start(agent.core()->handlers());
}

rpc::Future<void> restore_owner_snapshot(rpc::Agent& agent, std::vector<rref::ReferencePtr> modules,
                                         OwnerSnapshot snapshot) {
  return restore(OptimizerLayer::of(*agent.core()), std::move(modules), std::move(snapshot))
      .start(agent.core()->handlers());
}

ModuleSnapshot take_module(const rref::StoredObject& module) {
  return take_snapshot(*module.as<torch::nn::Module>(),
                       std::dynamic_pointer_cast<OwnedParametersGuard>(module.guard()));
}

void restore_module(const rpc::AgentCore& core, const std::shared_ptr<rref::StoredObject>& module,
                    ModuleSnapshot snapshot) {
  if (module->guard() == nullptr && snapshot.spec.name.empty())
    return dist_autograd::check_state(*module->as<torch::nn::Module>(), snapshot.module, true).copy(false);
  OwnerSnapshot one;
  one.modules.push_back(std::move(snapshot));
  restore_now(*OptimizerLayer::of(core), {module}, std::move(one));
}

}  // namespace weft::dist_optim

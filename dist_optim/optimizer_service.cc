#include <weft/dist_optim/optimizer_service.h>

#include <atomic>
#include <mutex>

namespace weft::dist_optim {
namespace {

std::shared_ptr<HostGuard> host_of(Context& context, rpc::CallContext& call) {
  const auto* target = call.slots().find<rref::Context::Target>();
  if (target == nullptr)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "an optimizer's call is about an object");
  return context.host_of(*target->object);
}

}  // namespace

void OptimizerService::attach(rpc::CallContext& call, OptimizerSpec spec, StepMode mode) {
  check(mode);
  host_of(*context, call)->host().register_trainer(trainer_of(call.peer().id.incarnation), spec, mode);
}

void OptimizerService::detach(rpc::CallContext& call) {
  host_of(*context, call)->host().unregister_trainer(trainer_of(call.peer().id.incarnation), false);
}

rpc::Future<std::uint64_t> OptimizerService::step(rpc::CallContext& call,
                                                  std::vector<dist_autograd::PassId> passes) {
  const auto guard = host_of(*context, call);
  const auto autograd = dist_autograd::Context::of(*context->core());
  const std::string trainer = trainer_of(call.peer().id.incarnation);
  ParameterHost& host = guard->host();
  auto gradients = std::make_shared<std::vector<PassGradients>>();
  for (const auto& id : passes) {
    PassGradients one{key_of(id), {}};
    const auto pass = autograd->find_if_known(id);
    const auto& parameters = host.parameters();
    for (std::size_t i = 0; pass != nullptr && i < parameters.size(); ++i)
      if (at::Tensor gradient = pass->gradient(parameters[i].tensor); gradient.defined())
        one.gradients.emplace(i, gradient);
    if (one.gradients.empty()) {
      host.release(one.pass);  // it has no part in this object's step
    } else {
      gradients->push_back(std::move(one));
    }
  }

  struct Step {
    rpc::Promise<std::uint64_t> promise;
    std::atomic<std::size_t> open;
    std::mutex mutex;  // guards error
    std::exception_ptr error;
  };
  auto step = std::make_shared<Step>();
  auto future = step->promise.future();
  step->open = gradients->size() + 1;
  const auto admitted = [step, guard, gradients, trainer](const std::exception_ptr& error) {
    if (error != nullptr) {
      std::lock_guard lock(step->mutex);
      step->error = error;
    }
    if (--step->open != 0) return;
    if (step->error != nullptr) return step->promise.fail(step->error);
    guard->host().step(trainer, std::move(*gradients),
                       [step, guard](std::exception_ptr failed, ParameterHost::Version version) {
                         step->promise.complete(failed != nullptr ? rpc::Result<std::uint64_t>(failed)
                                                                  : rpc::Result<std::uint64_t>(version));
                       });
  };
  // A module that its owner's own code reads (a trainer's head) has had no call through which its pass was
  // admitted.
  std::vector<PassKey> keys;
  for (const PassGradients& one : *gradients) keys.push_back(one.pass);
  for (const PassKey& key : keys) host.admit(trainer, key, admitted);
  admitted(nullptr);
  return future;
}

void OptimizerService::set_learning_rate(rpc::CallContext& call, double rate) {
  host_of(*context, call)->host().set_learning_rate(rate);
}

}  // namespace weft::dist_optim

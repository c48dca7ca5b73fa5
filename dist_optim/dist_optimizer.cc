#include <weft/dist_optim/dist_optimizer.h>

#include <weft/rpc/core/when_all.h>

namespace weft::dist_optim {

// How attaching ended, for everyone who asks; it is asked for with every step.
struct DistOptimizer::Attachment {
  std::mutex mutex;  // guards the rest
  std::optional<std::exception_ptr> ended;
  std::vector<rpc::Promise<void>> waiting;
};

template <auto Method, class... Given>
auto DistOptimizer::ask(const rref::ReferencePtr& module, Given&&... given) const {
  using Found = rpc::Peer::FoundMethod<Method>;
  using Value = typename Found::Type::Traits::Result;
  const rpc::Peer owner = module->context()->peer(module->owner());
  rpc::OutgoingCall call = owner.make_call(Found::name, sizeof...(Given));
  module->context()->target(module, call);
  rpc::Peer::encode<typename Found::Type>(call, std::forward<Given>(given)...);
  return owner.start_typed<Value>(std::move(call), [](rpc::Result<rpc::PendingCall::Reply>&& reply) {
    return rpc::Peer::decode<Value>(std::move(reply), Found::name);
  });
}

DistOptimizer::DistOptimizer(rpc::Agent& agent, OptimizerSpec spec, StepMode mode,
                             std::vector<rref::ReferencePtr> modules)
    : modules_(std::move(modules)), attachment_(std::make_shared<Attachment>()) {
  dist_autograd::Context::of(*agent.core());  // the layers are there
  check(mode);
  std::vector<rpc::Future<void>> attached;
  for (const auto& module : modules_) attached.push_back(ask<&OptimizerService::attach>(module, spec, mode));
  rpc::when_all(std::move(attached)).then([attachment = attachment_](rpc::Result<void>&& result) {
    std::vector<rpc::Promise<void>> waiting;
    {
      std::lock_guard lock(attachment->mutex);
      attachment->ended = result.ok() ? nullptr : result.error();
      waiting = std::exchange(attachment->waiting, {});
    }
    for (auto& promise : waiting) promise.complete(result);
  });
}

DistOptimizer::~DistOptimizer() {
  for (const auto& module : modules_) {
    try {
      ask<&OptimizerService::detach>(module).then([](auto&&) {});
    } catch (const rpc::Error&) {
      // The owner is gone, and with it all that there was to leave.
    }
  }
}

rpc::Future<void> DistOptimizer::attached() {
  rpc::Promise<void> promise;
  auto future = promise.future();
  std::unique_lock lock(attachment_->mutex);
  if (!attachment_->ended) {
    attachment_->waiting.push_back(std::move(promise));
    return future;
  }
  const std::exception_ptr error = *attachment_->ended;
  lock.unlock();
  promise.complete(error != nullptr ? rpc::Result<void>(error) : rpc::Result<void>());
  return future;
}

rpc::Future<void> DistOptimizer::step(const dist_autograd::Pass& pass) { return step(std::span(&pass, 1)); }

rpc::Future<void> DistOptimizer::step(std::span<const dist_autograd::Pass> passes) {
  std::vector<dist_autograd::PassId> ids;
  for (const auto& pass : passes) ids.push_back(pass.id());
  // Attaching was sent first and each object takes its calls in order, so the steps need not wait for its
  // answer.
  std::vector<rpc::Future<void>> parts;
  parts.push_back(attached());
  for (const auto& module : modules_)
    parts.push_back(ask<&OptimizerService::step>(module, ids).then([](rpc::Result<std::uint64_t>&& version) {
      return version.ok() ? rpc::Result<void>() : rpc::Result<void>(version.error());
    }));
  return rpc::when_all(std::move(parts));
}

rpc::Future<void> DistOptimizer::set_learning_rate(double rate) {
  std::vector<rpc::Future<void>> parts;
  parts.push_back(attached());
  for (const auto& module : modules_)
    parts.push_back(ask<&OptimizerService::set_learning_rate>(module, rate));
  return rpc::when_all(std::move(parts));
}

}  // namespace weft::dist_optim

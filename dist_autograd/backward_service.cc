#include <weft/dist_autograd/backward_service.h>

#include <weft/dist_autograd/context.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>

namespace weft::dist_autograd {
namespace {

rpc::Future<void> done_future(rpc::UniqueFunction<void(PassState::Done)> begin) {
  auto promise = std::make_shared<rpc::Promise<void>>();
  auto future = promise->future();
  begin([promise](std::exception_ptr error) {
    promise->complete(error != nullptr ? rpc::Result<void>(error) : rpc::Result<void>());
  });
  return future;
}

}  // namespace

rpc::Future<std::vector<rpc::AgentId>> close_everywhere(const std::shared_ptr<Context>& context,
                                                        const std::shared_ptr<PassState>& pass,
                                                        BackwardOptions options, bool initiator) {
  using Agents = std::vector<rpc::AgentId>;
  auto promise = std::make_shared<rpc::Promise<Agents>>();
  auto future = promise->future();
  // The initiator may itself be serving a call of the pass: it waits for its own calls only.
  pass->when_quiet(!initiator, [context, pass, options, promise] {
    try {
      if (!pass->close(options))
        return promise->complete(Agents{});  // whoever closed it answers for all below
      std::vector<rpc::Future<Agents>> below;
      for (const rpc::AgentId& peer : pass->met())
        if (peer != context->core()->id())
          below.push_back(context->ask<&BackwardService::close>(peer, pass->id(), options));
      rpc::when_all(std::move(below)).then([context, promise](rpc::Result<std::vector<Agents>>&& lists) {
        if (!lists.ok()) return promise->fail(lists.error());
        Agents all{context->core()->id()};
        for (const Agents& list : lists.value()) all.insert(all.end(), list.begin(), list.end());
        promise->complete(std::move(all));
      });
    } catch (...) {
      promise->fail(std::current_exception());
    }
  });
  return future;
}

rpc::Future<std::vector<rpc::AgentId>> BackwardService::close(rpc::CallContext&, PassId pass,
                                                              BackwardOptions options) {
  return close_everywhere(context, context->find(pass), options, false);
}

rpc::Future<void> BackwardService::root(rpc::CallContext& call, PassId pass, at::Tensor gradient) {
  const auto* target = call.slots().find<rref::Context::Target>();
  if (target == nullptr)
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "a root is called on an RRef to a tensor");
  const rpc::KeptValue& value = target->object->value();
  if (value.type != "tensor")
    throw rpc::Error(rpc::ErrorKind::type_mismatch, "a root must be a tensor, not " + value.type);
  return context->find(pass)->add_root(*static_cast<const at::Tensor*>(value.value.get()),
                                       std::move(gradient));
}

rpc::Future<void> BackwardService::start(PassId pass) {
  return done_future([state = context->find(pass)](PassState::Done done) { state->start(std::move(done)); });
}

rpc::Future<void> BackwardService::gradients(PassId pass, MessageId message,
                                             std::vector<at::Tensor> gradients) {
  return done_future([&, state = context->find(pass)](PassState::Done done) {
    state->deliver(message, std::move(gradients), std::move(done));
  });
}

rpc::Future<std::vector<std::string>> BackwardService::finish(PassId pass) {
  return context->find(pass)->finish();
}

void BackwardService::release(rpc::CallContext&, PassId pass, std::string error) {
  context->release(
      pass, error.empty() ? nullptr : std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, error)));
}

}  // namespace weft::dist_autograd

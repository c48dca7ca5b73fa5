#include <weft/dist_autograd/internal/backward_service.h>

#include <weft/dist_autograd/backward_trace.h>
#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/internal/backward_share.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/tensor/device_layer.h>

#include <algorithm>

namespace weft::dist_autograd {
namespace {

rpc::Future<Report> reported(rpc::UniqueFunction<void(BackwardShare::Done)> begin) {
  rpc::Promise<Report> promise;
  auto future = promise.future();
  begin([promise = std::move(promise)](rpc::Result<Report> report) mutable {
    promise.complete(std::move(report));
  });
  return future;
}

BackwardShare::RequestSource source_of(rpc::CallContext& call) {
  return {call.peer().id, trace_of_message(call)};
}

}  // namespace

rpc::Future<std::vector<rpc::AgentId>> close_everywhere(const std::shared_ptr<AutogradLayer>& layer,
                                                        const std::shared_ptr<PassState>& pass,
                                                        Backward backward, bool initiator) {
  using Agents = std::vector<rpc::AgentId>;
  auto promise = std::make_shared<rpc::Promise<Agents>>();
  auto future = promise->future();
  // The initiator may itself be serving a call of the pass: it waits only for its own calls.
  pass->when_quiet(!initiator, [layer, pass, backward, promise] {
    pass->close(backward, [layer, pass, backward, promise](rpc::Result<bool> fresh) {
      if (!fresh.ok()) return promise->fail(fresh.error());
      if (!fresh.value())
        return promise->complete(Agents{});  // the reply to the call that closed it lists the workers below
      auto below = rpc::capture([&] {
        std::vector<rpc::Future<Agents>> asked;
        for (const rpc::AgentId& peer : pass->met())
          if (peer != layer->core()->id())
            asked.push_back(layer->ask<&BackwardService::close>(peer, pass->id(), backward));
        return rpc::when_all(std::move(asked));
      });
      if (!below.ok()) return promise->fail(below.error());
      std::move(below).get().then([layer, promise](rpc::Result<std::vector<Agents>>&& lists) {
        if (!lists.ok()) return promise->fail(lists.error());
        Agents all{layer->core()->id()};
        for (const Agents& list : lists.value()) all.insert(all.end(), list.begin(), list.end());
        promise->complete(std::move(all));
      });
    });
  });
  return future;
}

rpc::Future<void> cancel_everywhere(const std::shared_ptr<AutogradLayer>& layer,
                                    const std::shared_ptr<PassState>& pass, Backward backward) {
  auto promise = std::make_shared<rpc::Promise<void>>();
  auto future = promise->future();
  pass->cancel(backward.id).then([layer, pass, backward, promise](rpc::Result<bool>&& had) {
    // If the share had ended already, this worker has asked the workers below it before.
    const bool spread = had.ok() && had.value() && backward.options.mode == BackwardMode::fast;
    if (!spread) return promise->complete(had.ok() ? rpc::Result<void>() : rpc::Result<void>(had.error()));
    auto below = rpc::capture([&] {
      std::vector<rpc::Future<void>> asked;
      for (const rpc::AgentId& peer : pass->met())
        if (peer != layer->core()->id())
          asked.push_back(layer->ask<&BackwardService::cancel>(peer, pass->id(), backward));
      return rpc::when_all(std::move(asked));
    });
    if (!below.ok()) return promise->fail(below.error());
    std::move(below).get().then(
        [promise](rpc::Result<void>&& ended) { promise->complete(std::move(ended)); });
  });
  return future;
}

rpc::Future<std::vector<rpc::AgentId>> BackwardService::close(rpc::CallContext&, PassId pass,
                                                              Backward backward) {
  return close_everywhere(layer, layer->find(pass), backward, false);
}

rpc::Future<void> BackwardService::root(rpc::CallContext& call, PassId pass, Backward backward,
                                        at::Tensor gradient) {
  const auto* target = call.slots().find<rref::RRefLayer::Target>();
  if (target == nullptr)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "backward: the call `root` names no tensor behind an RRef");
  const rpc::KeptValue& value = target->object->value();
  if (value.type->name != "tensor")
    throw rpc::Error(rpc::ErrorKind::type_mismatch,
                     "backward: a root must be a tensor, not an object of type " + value.type->name);
  tensor::wait_for_arguments(call);
  return layer->find(pass)->add_root(backward, *static_cast<const at::Tensor*>(value.value.get()),
                                     std::move(gradient));
}

rpc::Future<void> BackwardService::cancel(rpc::CallContext&, PassId pass, Backward backward) {
  const auto state = layer->find_if_known(pass);
  if (state == nullptr) return rpc::Future<void>::made(rpc::Result<void>());
  return cancel_everywhere(layer, state, backward);
}

rpc::Future<Report> BackwardService::begin(rpc::CallContext& call, PassId pass, Backward backward,
                                           Stage stage) {
  return reported([&, state = layer->find(pass)](BackwardShare::Done done) {
    state->with_share(backward, std::move(done),
                      [stage, source = source_of(call)](BackwardShare& share, BackwardShare::Done done) {
                        share.begin(stage, source, std::move(done));
                      });
  });
}

rpc::Future<Report> BackwardService::gradients(rpc::CallContext& call, PassId pass, Backward backward,
                                               MessageId message, std::vector<at::Tensor> gradients) {
  tensor::wait_for_arguments(call);
  return reported([&, state = layer->find(pass)](BackwardShare::Done done) {
    state->with_share(backward, std::move(done),
                      [message, source = source_of(call), gradients = std::move(gradients)](
                          BackwardShare& share, BackwardShare::Done done) mutable {
                        share.deliver(message, std::move(gradients), source, std::move(done));
                      });
  });
}

rpc::Future<Report> BackwardService::discover(rpc::CallContext& call, PassId pass, Backward backward,
                                              std::vector<MessageId> messages) {
  return reported([&, state = layer->find(pass)](BackwardShare::Done done) {
    state->with_share(backward, std::move(done),
                      [messages = std::move(messages), source = source_of(call)](
                          BackwardShare& share, BackwardShare::Done done) mutable {
                        share.discover(messages, source, std::move(done));
                      });
  });
}

rpc::Future<std::vector<std::string>> BackwardService::finish(PassId pass, BackwardId backward) {
  return layer->find(pass)->finish(backward);
}

void BackwardService::release(rpc::CallContext& call, PassId pass, std::string error) {
  if (!layer->may_release(pass, call.peer().id)) return;
  layer->release(
      pass, error.empty() ? nullptr : std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, error)));
}

WorkerGraph BackwardService::graph(PassId pass) { return layer->find(pass)->graph({}); }

}  // namespace weft::dist_autograd

// How a trainer calls the OptimizerService of an object's owner, and waits for several such calls.
#pragma once

#include <weft/dist_optim/service/internal/optimizer_service.h>
#include <weft/rpc/core/future.h>
#include <weft/rref/rref_layer.h>

#include <atomic>
#include <memory>
#include <vector>

namespace weft::dist_optim {

// Calls `Method` on the object. All errors fail the future; owner_lost replaces peer_lost.
template <auto Method, class... Given>
auto ask(const rref::ReferencePtr& module, Given&&... given) {
  using Found = rpc::FoundMethod<Method>;
  using Value = typename Found::Type::Traits::Result;
  try {
    const rpc::Peer owner = module->layer()->peer(module->owner());
    rpc::OutgoingCall call = owner.calls().make(Found::name, sizeof...(Given));
    module->layer()->target(module, call);
    rpc::encode_call<typename Found::Type>(call, std::forward<Given>(given)...);
    return owner.calls().start_typed<Value>(
        std::move(call), [object = module->about()](rpc::Result<rpc::PendingCall::Reply>&& reply) {
          return rpc::decode_reply<Value>(rref::RRefLayer::explain(std::move(reply), *object), Found::name);
        });
  } catch (const rpc::Error& error) {
    return rpc::Future<Value>::made(
        std::make_exception_ptr(rpc::Error(error.kind(), error.what(), rpc::Execution::not_sent)));
  }
}

// Calls `done` with all results, in order, when the last one has arrived.
template <class T, class Done>
void when_settled(std::vector<rpc::Future<T>> futures, Done done) {
  struct Gathering {
    explicit Gathering(Done done) : done(std::move(done)) {}
    std::vector<rpc::Result<T>> results;
    std::atomic<std::size_t> open;
    Done done;
  };
  auto gathering = std::make_shared<Gathering>(std::move(done));
  gathering->results.resize(futures.size(), rpc::Result<T>(std::exception_ptr()));
  gathering->open = futures.size() + 1;
  const auto finish = [gathering] {
    if (--gathering->open == 0) gathering->done(std::move(gathering->results));
  };
  for (std::size_t i = 0; i < futures.size(); ++i)
    futures[i].then([gathering, finish, i](rpc::Result<T>&& result) {
      gathering->results[i] = std::move(result);
      finish();
    });
  finish();
}

}  // namespace weft::dist_optim

#include <weft/rpc/call/call_hook.h>

#include <weft/rpc/core/when_all.h>

#include <algorithm>
#include <utility>

namespace weft::rpc {
namespace {

void ask_next(const std::vector<std::shared_ptr<CallHook>>& hooks, std::size_t left,
              const std::shared_ptr<IncomingCall>& call) {
  if (left == 0) return call->run();
  try {
    // The call keeps its agent, and so the hooks, alive.
    hooks[left - 1]->incoming(call, [&hooks, left, call] { ask_next(hooks, left - 1, call); });
  } catch (...) {
    call->fail(std::current_exception());
  }
}

void leave_layers(std::vector<std::shared_ptr<CallHook>> layers, Promise<void> promise) {
  if (layers.empty()) return promise.complete(Result<void>{});
  const auto highest = std::move(layers.back());
  layers.pop_back();
  highest->leaving().then([layers = std::move(layers), promise = std::move(promise)](Result<void>&&) mutable {
    leave_layers(std::move(layers), std::move(promise));
  });
}

}  // namespace

void LayerHooks::prepare(const std::shared_ptr<IncomingCall>& call) const {
  const auto unknown = call->message().unknown_required([this](std::string_view key) {
    return std::any_of(hooks_.begin(), hooks_.end(), [&](const auto& hook) { return hook->knows(key); });
  });
  if (unknown)
    return call->fail(Error(ErrorKind::unsupported,
                            "the call needs a layer that this agent was created without: " + *unknown));
  ask_next(hooks_, hooks_.size(), call);
}

void LayerHooks::propagate(CallContext& parent, OutgoingCall& child) const {
  if (const auto deadline = parent.deadline(); deadline && (!child.deadline || *deadline < *child.deadline))
    child.deadline = deadline;
  for (const auto& hook : hooks_) hook->nested(parent, child);
}

void LayerHooks::make_contexts(IncomingCall& call) const {
  for (const auto& make : contexts_)
    if (auto context = make(call)) call.add_context(std::move(context));
}

std::string LayerHooks::text_of(const std::exception_ptr& failure) const {
  for (const auto& explain : explanations_)
    if (auto text = explain(failure)) return std::move(*text);
  return what_of(failure);
}

LayerStats LayerHooks::stats() const {
  LayerStats stats;
  for (const auto& hook : hooks_) hook->stats(stats);
  return stats;
}

Future<void> LayerHooks::leave(const std::shared_ptr<Loop>& loop) const {
  Promise<void> promise(loop);
  auto future = promise.future();
  leave_layers(hooks_, std::move(promise));
  return future;
}

Future<void> LayerHooks::end_memberships() const {
  std::vector<Future<void>> all;
  for (const auto& hook : hooks_) all.push_back(hook->left());
  return when_all(std::move(all));
}

Result<void> LayerHooks::world_complete(const std::vector<std::string>& members) const {
  return capture([&] {
    for (const auto& hook : hooks_) hook->world_complete(members);
  });
}

// The members are emptied before the layers are destroyed, because destructors of layers may call the agent.
void LayerHooks::clear() {
  const auto hooks = std::exchange(hooks_, {});
  const auto contexts = std::exchange(contexts_, {});
  Slots layers;
  std::swap(layers, layers_);
}

}  // namespace weft::rpc

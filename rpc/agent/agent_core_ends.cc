// AgentCore: how it ends: it drains, its world fails, it is shut down.
#include <weft/rpc/agent/agent_core.h>

#include <weft/rpc/agent/link.h>
#include <weft/rpc/agent/sessions.h>

#include <algorithm>

namespace weft::rpc {
namespace {

// The highest layer leaves first, and each layer when those above it have left: the layers below tell the
// peers what the layers above have released.
void leave_layers(std::vector<std::shared_ptr<CallHook>> layers, Promise<void> promise) {
  if (layers.empty()) return promise.complete(Result<void>{});
  const auto highest = std::move(layers.back());
  layers.pop_back();
  highest->leaving().then([layers = std::move(layers), promise = std::move(promise)](Result<void>&&) mutable {
    leave_layers(std::move(layers), std::move(promise));
  });
}

}  // namespace

Future<void> AgentCore::leaving() {
  Promise<void> promise(pick_loop());
  auto future = promise.future();
  leave_layers(hooks_, std::move(promise));
  return future;
}

Future<void> AgentCore::drain(std::chrono::nanoseconds timeout) {
  auto draining = std::make_shared<Draining>(pick_loop());
  auto future = draining->promise.future();
  std::vector<std::shared_ptr<Link>> links;
  {
    std::lock_guard lock(mutex_);
    if (drained_ != nullptr) {
      draining->promise.fail(Error(ErrorKind::failed_precondition, "the agent is draining already"));
      return future;
    }
    drained_ = draining;
    links.assign(links_.begin(), links_.end());
  }
  draining_ = true;
  for (const auto& link : links) link->loop()->post([link] { link->say_goodbye(); });
  for (const auto& hook : hooks_) hook->draining();
  draining->loop->post([self = shared_from_this(), draining, timeout] {
    draining->timer =
        draining->loop->schedule(later(draining->loop->now(), timeout), [weak = std::weak_ptr(self)] {
          if (const auto core = weak.lock())
            core->end_drain(std::make_exception_ptr(Error(
                ErrorKind::deadline_exceeded,
                std::to_string(core->active_.all()) + " calls were still being served, and " +
                    std::to_string(core->outgoing_.all()) + " waited for, when the time to drain was over")));
        });
    self->check_drained();
  });
  return future;
}

void AgentCore::check_drained() {
  if (draining_ && active_.all() == 0 && outgoing_.all() == 0) end_drain(Result<void>{});
}

void AgentCore::end_drain(Result<void> result) {
  std::shared_ptr<Draining> draining;
  {
    std::lock_guard lock(mutex_);
    draining = std::exchange(drained_, nullptr);
  }
  if (draining == nullptr) return;
  draining->loop->post(
      [draining] { draining->loop->cancel(draining->timer); });  // after it was made: posted later
  draining->promise.complete(std::move(result));
}

Result<void> AgentCore::world_complete(const std::vector<std::string>& members) const {
  try {
    for (const auto& hook : hooks_) hook->world_complete(members);
    return {};
  } catch (...) {
    return std::current_exception();
  }
}

void AgentCore::blame(const Error& error) {
  std::lock_guard lock(mutex_);
  if (world_failure_) return;
  world_failure_ = error;
  world_failed_ = true;
}

void AgentCore::fail_world(const Error& reason) {
  blame(reason);
  std::vector<std::shared_ptr<Link>> links;
  std::vector<std::shared_ptr<Route>> routes;
  Error error = reason;
  {
    std::lock_guard lock(mutex_);
    if (world_ended_.exchange(true)) return;
    error = *world_failure_;
    links.assign(links_.begin(), links_.end());
    for (const auto& [name, route] : routes_) routes.push_back(route);
  }
  log(LogLevel::error, error.what(), {{log_fields::kind, to_string(error.kind())}});
  for (const auto& link : links) link->loop()->post([link, error] { link->fail_pending(error); });
  for (const auto& route : routes) route->loop()->post([route, error] { route->fail_waiting(error); });
  for (const auto& session : sessions_->all()) session->fail_calls(error);
  for (const auto& hook : hooks_) hook->world_failed(error);
}

std::optional<Error> AgentCore::world_failure() const {
  if (!world_failed_) return std::nullopt;  // asked for every call
  std::lock_guard lock(mutex_);
  return world_failure_;
}

void AgentCore::shut_down() {
  if ((own_handlers_ != nullptr && own_handlers_->running_here()) ||
      std::any_of(loops_.begin(), loops_.end(),
                  [](const auto& loop) { return loop->owns_thread() && loop->running_here(); }))
    throw Error(
        ErrorKind::failed_precondition,
        "'" + id_.name +
            "' cannot be shut down, or destroyed, on one of its own threads: it waits for them to end");
  if (ended_.exchange(true)) return;
  draining_ = true;
  for (auto hook = hooks_.rbegin(); hook != hooks_.rend(); ++hook) (*hook)->shut_down();
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<std::shared_ptr<Link>> links;
  std::vector<std::shared_ptr<Route>> routes;
  {
    std::lock_guard lock(mutex_);
    listeners = std::move(listeners_);
    listeners_.clear();
    for (auto& companion : std::exchange(companions_, {})) listeners.push_back(std::move(companion));
    links.assign(links_.begin(), links_.end());
    for (const auto& [name, route] : routes_) routes.push_back(route);
  }
  for (const auto& listener : listeners) listener->close();
  for (const auto& [scheme, transport] : transports_) transport->shut_down();
  const Error reason(ErrorKind::shut_down, "this agent has shut down");
  // Peers that have not heard of their job's failure yet learn its cause, rather than take this end for it.
  auto failure = world_failure();
  if (failure && failure->kind() != ErrorKind::peer_lost) failure.reset();
  const auto end = [&](Loop& loop) {
    for (const auto& link : links)
      if (link->loop().get() == &loop) failure ? link->expel(*failure) : link->end_incarnation(reason);
    for (const auto& route : routes)
      if (route->loop().get() == &loop) route->shut_down(reason);
  };
  for (const auto& loop : loops_) {
    if (!loop->owns_thread()) {
      // The program's io_context, or a simulation's: the agent is destroyed on the thread that runs it, or
      // when nobody does any more.
      end(*loop);
      continue;
    }
    detail::Latch done;
    loop->post([&] {
      end(*loop);
      done.open();
    });
    done.wait();
  }
  for (const auto& session : sessions_->close_all()) session->end(reason);
  listeners.clear();
  // Handlers that waited for calls have been woken with an error; what is queued runs to its end.
  if (own_handlers_ != nullptr) own_handlers_->join();
  for (const auto& loop : loops_) loop->stop();
  end_drain(
      std::make_exception_ptr(Error(ErrorKind::shut_down, "the agent was shut down before it had drained")));
  // Layers and methods hold the core; nothing runs here any more. What they let go of ends outside the locks.
  decltype(methods_) methods;
  decltype(replaced_) replaced;
  {
    std::unique_lock lock(methods_mutex_);
    methods.swap(methods_);
    replaced.swap(replaced_);
  }
  // A served object may keep the promise of an answer, and by it a call of its own method, for ever.
  for (const auto& [id, entry] : methods) entry->object = nullptr;
  for (const auto& entry : replaced) entry->object = nullptr;
  decltype(routes_) last_routes;
  decltype(links_) last_links;
  decltype(directory_) directory;
  decltype(hooks_) hooks;
  decltype(contexts_) contexts;
  Slots layers;
  std::lock_guard lock(mutex_);
  last_routes.swap(routes_);
  last_links.swap(links_);
  directory.swap(directory_);
  hooks.swap(hooks_);
  contexts.swap(contexts_);
  std::swap(layers, layers_);
}

}  // namespace weft::rpc

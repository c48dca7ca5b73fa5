// AgentCore: how it ends: it drains, its world fails, it is shut down.
#include <weft/rpc/agent/agent_core.h>

#include <weft/rpc/agent/link.h>
#include <weft/rpc/agent/sessions.h>

#include <algorithm>

namespace weft::rpc {
Future<void> AgentCore::drain(std::chrono::nanoseconds timeout) {
  return accounts()->drain(pick_loop(), timeout, [this] {
    for (const auto& link : all_links()) link->loop()->post([link] { link->say_goodbye(); });
    for (const auto& hook : hooks().all()) hook->draining();
  });
}

void AgentCore::fail_world(const Error& reason) {
  blame(reason);
  std::vector<std::shared_ptr<Link>> links;
  std::vector<std::shared_ptr<Route>> routes;
  if (!end_world()) return;
  const Error error = *world_failure();
  {
    std::lock_guard lock(mutex_);
    links.assign(links_.begin(), links_.end());
    for (const auto& [name, route] : routes_) routes.push_back(route);
  }
  log(LogLevel::error, error.what(), {{log_fields::kind, to_string(error.kind())}});
  for (const auto& link : links) link->loop()->post([link, error] { link->fail_pending(error); });
  for (const auto& route : routes) route->loop()->post([route, error] { route->fail_waiting(error); });
  for (const auto& session : sessions_->all()) session->fail_calls(error);
  for (const auto& hook : hooks().all()) hook->world_failed(error);
}

void AgentCore::shut_down() {
  if ((own_handlers_ != nullptr && own_handlers_->running_here()) ||
      std::any_of(loops_.begin(), loops_.end(),
                  [](const auto& loop) { return loop->owns_thread() && loop->running_here(); }))
    throw Error(
        ErrorKind::failed_precondition,
        "'" + id().name +
            "' cannot be shut down, or destroyed, on one of its own threads: it waits for them to end");
  if (!end()) return;
  accounts()->set_draining();
  for (auto hook = hooks().all().rbegin(); hook != hooks().all().rend(); ++hook) (*hook)->shut_down();
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
  const auto end_on = [&](Loop& loop) {
    for (const auto& link : links)
      if (link->loop().get() == &loop) failure ? link->expel(*failure) : link->end_incarnation(reason);
    for (const auto& route : routes)
      if (route->loop().get() == &loop) route->shut_down(reason);
  };
  for (const auto& loop : loops_) {
    if (!loop->owns_thread()) {
      // The program's io_context, or a simulation's: the agent is destroyed on the thread that runs it, or
      // when nobody does any more.
      end_on(*loop);
      continue;
    }
    detail::Latch done;
    loop->post([&] {
      end_on(*loop);
      done.open();
    });
    done.wait();
  }
  for (const auto& session : sessions_->close_all()) session->end(reason);
  listeners.clear();
  // Handlers that waited for calls have been woken with an error; what is queued runs to its end.
  if (own_handlers_ != nullptr) own_handlers_->join();
  for (const auto& loop : loops_) loop->stop();
  accounts()->fail_drain(Error(ErrorKind::shut_down, "the agent was shut down before it had drained"));
  // Layers and methods own the core; nothing runs here any more. What they release is destroyed without
  // locks.
  methods().clear();
  decltype(routes_) last_routes;
  decltype(links_) last_links;
  decltype(directory_) directory;
  {
    std::lock_guard lock(mutex_);
    last_routes.swap(routes_);
    last_links.swap(links_);
    directory.swap(directory_);
  }
  hooks().clear();
}

}  // namespace weft::rpc

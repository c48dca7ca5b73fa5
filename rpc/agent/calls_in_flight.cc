#include <weft/rpc/agent/calls_in_flight.h>

#include <weft/rpc/core/log.h>
#include <weft/rpc/core/when_all.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/sessions.h>

#include <algorithm>
#include <cstdio>

namespace weft::rpc {
namespace {

double seconds(Clock::duration time) { return std::chrono::duration<double>(time).count(); }
double age_of(Clock::time_point now, Clock::time_point since) { return std::max(seconds(now - since), 0.0); }

MadeCall describe(const PendingCall& call, std::string_view state, Clock::time_point now) {
  MadeCall made;
  made.id = call.id();
  made.method = call.method();
  made.peer = call.route()->peer_name();
  made.age = age_of(now, call.made());
  made.state = state;
  if (const auto deadline = call.deadline()) made.left = std::max(seconds(*deadline - now), 0.0);
  if (const auto served = std::dynamic_pointer_cast<IncomingCall>(call.served()))
    made.serving = {served->peer().id.name, served->peer().id.incarnation, served->id()};
  return made;
}

ServedCall describe(const IncomingCall& call, const Loop& loop, Clock::time_point now) {
  const Executor* queue = call.queue();
  const void* place = queue;
  ServedCall served;
  served.call = {call.peer().id.name, call.peer().id.incarnation, call.id()};
  served.method = call.method();
  served.age = age_of(now, call.accepted());
  served.state = "preparing";
  if (call.at_gate()) {
    served.state = "queued";
    served.on = "limit";
    place = call.entry().gate.get();
  } else if (queue != nullptr) {
    served.state = !call.began() ? "queued" : call.returned() ? "suspended" : "running";
    served.on = queue == &call.host()->handlers() ? "handlers" : queue == &loop ? "loop" : "object";
  }
  served.queue = static_cast<std::uint64_t>(reinterpret_cast<std::uintptr_t>(place));
  return served;
}

// The calls of one loop; called on that loop. omitted: a call to omit; null: none.
CallsInFlight calls_of(AgentCore& core, const Loop& loop, const IncomingCall* omitted) {
  const auto now = loop.now();
  CallsInFlight part;
  const auto note = [&](const auto& calls, std::string_view state) {
    for (const auto& call : calls)
      if (!call->finished()) part.made.push_back(describe(*call, state, now));
  };
  // Iterates over copies of the tables: if a call completes meanwhile, this function may be its last owner,
  // and the destruction of a call changes the tables.
  for (const auto& route : core.routes().all())
    if (route->loop().get() == &loop) note(std::deque(route->waiting()), made_connecting);
  for (const auto& session : core.sessions().all()) {
    if (!session->is_at(loop)) continue;
    note(session->calls().in_flight(), made_sent);
    note(session->calls().held(), session->is_connected() ? made_held : made_connecting);
    for (const auto& call : session->served().all())
      if (call.get() != omitted && !call->answered()) part.served.push_back(describe(*call, loop, now));
  }
  return part;
}

// Asks each loop for its calls. If a loop hangs, its future does not complete.
std::vector<Future<CallsInFlight>> ask_loops(const std::shared_ptr<AgentCore>& core,
                                             const IncomingCall* omitted) {
  std::vector<Future<CallsInFlight>> parts;
  for (const auto& loop : core->loops()) {
    Promise<CallsInFlight> promise;
    parts.push_back(promise.future());
    loop->post([core, omitted, loop = loop.get(), promise = std::move(promise)]() mutable {
      promise.complete(capture([&] { return calls_of(*core, *loop, omitted); }));
    });
  }
  return parts;
}

// parts: of the loops that have answered.
CallsInFlight combine(const AgentCore& core, const std::vector<CallsInFlight>& parts) {
  CallsInFlight all{core.id().name, core.id().incarnation, core.options().handler_threads,
                    core.loops().size() - parts.size()};
  for (const CallsInFlight& part : parts) {
    all.made.insert(all.made.end(), part.made.begin(), part.made.end());
    all.served.insert(all.served.end(), part.served.begin(), part.served.end());
  }
  const auto older = [](const auto& a, const auto& b) { return a.age > b.age; };
  std::stable_sort(all.made.begin(), all.made.end(), older);
  std::stable_sort(all.served.begin(), all.served.end(), older);
  return all;
}

std::string text_of(const CallName& call) { return call.caller + "#" + std::to_string(call.id); }

std::string time_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", seconds);
  return text;
}

}  // namespace

CallsInFlight calls_in_flight(const std::shared_ptr<AgentCore>& core, std::chrono::nanoseconds timeout) {
  const auto deadline = later(Clock::now(), timeout);
  std::vector<CallsInFlight> parts;
  for (auto& part : ask_loops(core, nullptr)) try {
      parts.push_back(part.get(std::max(deadline - Clock::now(), Clock::duration::zero())));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::failed_precondition) throw;  // else this loop has no part
    }
  return combine(*core, parts);
}

MethodEntry pending_entry() {
  MethodEntry entry = detail::own_entry<CallsInFlight>(pending_method);
  entry.run = [](std::shared_ptr<IncomingCall> call) {
    const auto core = AgentCore::of(*call);
    when_all(ask_loops(core, call.get())).then([core, call](Result<std::vector<CallsInFlight>>&& parts) {
      detail::answer<CallsInFlight>(*call, capture([&] { return combine(*core, parts.value()); }));
    });
  };
  return entry;
}

Future<CallsInFlight> calls_in_flight(const Peer& peer) {
  return peer.calls().ask<CallsInFlight>(pending_method);
}

// The text is for a terminal, so names are escaped: peers choose them.
std::string text_of(const CallsInFlight& calls) {
  std::string text = calls.name + ": " + std::to_string(calls.made.size()) + " calls waited for, " +
                     std::to_string(calls.served.size()) + " served";
  if (calls.silent_loops != 0) text += "; " + std::to_string(calls.silent_loops) + " loops do not answer";
  text += '\n';
  for (const MadeCall& call : calls.made) {
    text += "  waits " + time_text(call.age) + " for " + escaped(call.method + " on " + call.peer) + " (#" +
            std::to_string(call.id) + ")";
    if (call.state == made_connecting) text += ", not sent: no connection";
    if (call.state == made_held) text += ", not sent: no credit";
    if (call.left >= 0) text += ", deadline in " + time_text(call.left);
    if (call.serving.id != 0) text += ", on behalf of " + escaped(text_of(call.serving));
    text += '\n';
  }
  for (const ServedCall& call : calls.served) {
    text += "  serves " + escaped(call.method + " of " + text_of(call.call)) + " since " +
            time_text(call.age) + ", " + call.state;
    if (call.state == "queued") text += " for the " + call.on;
    if (call.state == "running") text += " on the " + call.on;
    text += '\n';
  }
  return text;
}

}  // namespace weft::rpc

#include <weft/rpc/endpoint/served_calls.h>

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/sessions.h>

#include <algorithm>
#include <map>

namespace weft::rpc {
namespace {

// The entry for a method that is not served. Layers above still read the sections of the call, and end the
// state that depends on the call. The caller knows the method's name; only the log line of a notification
// contains the id.
std::shared_ptr<const MethodEntry> no_method(std::uint64_t id) {
  MethodEntry entry;
  entry.non_blocking = true;
  entry.run = [id](std::shared_ptr<IncomingCall> call) {
    const std::string which = call->is_notification() ? " (id " + std::to_string(id) + ")" : "";
    call->refuse(Error(ErrorKind::not_found, "no such method on this agent" + which));
  };
  return std::make_shared<const MethodEntry>(std::move(entry));
}

}  // namespace

ServedCalls::ServedCalls(AgentCore& core)
    : core_(core),
      calls_(core.sessions().id_seed()),
      batch_{std::max<std::uint32_t>(core.options().limits.calls / 4, 1),
             std::max<std::uint64_t>(core.options().limits.in_flight / 4, 1)} {}

bool ServedCalls::accept(Source source, std::shared_ptr<IncomingMessage> message, bool admitted, bool waits,
                         std::uint64_t accepted) {
  const Prefix prefix = message->prefix();
  const std::uint64_t id = message->request().method;
  auto method = core_.methods().find(id);
  if (method == nullptr) method = no_method(id);
  const bool counts = !method->background;
  core_.counters().calls_served.add();
  const Caller& caller = *source.caller;
  if (const auto& permissions = core_.options().permissions;
      permissions && !permissions->allows(caller.identity, method->name)) {
    core_.counters().calls_denied.add();
    const std::string who = caller.identity.empty() ? "a peer without a proven identity" : caller.identity;
    core_.log().write_some("calls denied", source.loop,
                           caller.id.name + " (" + who + ") may not call " + method->name,
                           {{log_fields::peer, caller.id.name},
                            {log_fields::identity, caller.identity},
                            {log_fields::method, method->name},
                            {log_fields::call, std::to_string(prefix.call_id)},
                            {log_fields::kind, to_string(ErrorKind::permission_denied)}});
    refuse(source, prefix, *method, ErrorKind::permission_denied, who + " may not call this");
    return counts;
  }
  // The call is counted before draining() is read, because drain() sets draining() before it reads the number
  // of calls in flight.
  ActiveCall active(core_.accounts(), method->background);
  if (core_.draining() && !method->control) {
    refuse(source, prefix, *method, ErrorKind::shut_down, "this agent is shutting down");
    return counts;
  }
  if (calls_.contains(prefix.call_id))
    throw Error(ErrorKind::protocol_error,
                "bad frame: the call id " + std::to_string(prefix.call_id) + " is used twice");
  const Limits& limits = core_.options().limits;
  // Each open stream has two requests in flight, and a few late requests.
  const bool room = method->control
                        ? unanswered_.control / 4 < core_.options().streams.max_per_peer
                        : unanswered_.calls / 2 < limits.calls && unanswered_.bytes / 2 < limits.in_flight;
  if (!room || !core_.accounts()->hold(message->bytes(), method->control, admitted)) {
    core_.counters().calls_shed.add();
    refuse(source, prefix, *method, ErrorKind::resource_exhausted,
           "too many requests in flight, or too many bytes in them: this peer has " +
               std::to_string(unanswered_.calls + unanswered_.control) + " requests with " +
               std::to_string(unanswered_.bytes) + " bytes, and this agent has " +
               std::to_string(core_.accounts()->served()) +
               " (Limits::calls, in_flight, calls_total, in_flight_total)");
    return counts;
  }
  Served served{.bytes = message->bytes(), .accepted = accepted, .control = method->control};
  count(served, 1);
  const bool at_once = served.control || (waiting_.empty() && !waits);
  auto call = std::make_shared<IncomingCall>(core_.shared_from_this(), std::move(source), std::move(method),
                                             std::move(message), std::move(active));
  served.call = call;
  calls_.insert(prefix.call_id, std::move(served));
  if (at_once) {
    serve(call);
  } else {
    waiting_.push(std::move(call));
  }
  return counts;
}

void ServedCalls::skip(const Source& source, const Prefix& request) {
  core_.counters().calls_shed.add();
  refuse(source, request, MethodEntry{}, ErrorKind::resource_exhausted,
         "no room for a request of " + std::to_string(request.message_bytes()) +
             " bytes: this agent has reached Limits::in_flight_total");
}

void ServedCalls::refuse(const Source& source, const Prefix& request, const MethodEntry& method,
                         ErrorKind kind, const std::string& message) {
  if ((request.flags & frame_flags::notify) == 0)
    return source.carrier->send_failure(request, {kind, message, core_.id().name, method.name, {}, true},
                                        ActiveCall(core_.accounts()));
  core_.log().write_some(
      "notifications dropped", source.loop,
      "a notification from " + source.caller->id.name + " was dropped: " + method.name + ": " + message,
      {{log_fields::peer, source.caller->id.name},
       {log_fields::method, method.name},
       {log_fields::call, std::to_string(request.call_id)},
       {log_fields::kind, to_string(kind)}});
  if (!method.control)
    source.carrier->call_ended(
        {.id = 0, .bytes = request.message_bytes(), .notification = true, .was_refused = true});
}

void ServedCalls::serve(const std::shared_ptr<IncomingCall>& call) {
  if (call->message().has_sections()) {
    call->host()->hooks().prepare(call);
  } else {
    call->run();
  }
}

void ServedCalls::serve_next(const std::shared_ptr<Loop>& loop) {
  const auto call = waiting_.pop();
  call->set_loop(loop);
  serve(call);
}

std::uint64_t ServedCalls::answered(std::uint64_t call_id) {
  Served* served = calls_.find(call_id);
  if (served == nullptr) return 0;
  if (std::exchange(served->counted, false)) count(*served, -1);
  return served->accepted;
}

void ServedCalls::count(const Served& call, std::int64_t sign) {
  const auto one = static_cast<std::uint64_t>(sign);
  (call.control ? unanswered_.control : unanswered_.calls) += one;
  if (!call.control) unanswered_.bytes += one * call.bytes;
}

std::optional<CreditInfo> ServedCalls::ended(const Carrier::EndedCall& call) {
  if (!call.was_refused)
    if (const auto served = calls_.take(call.id); served && served->counted) count(*served, -1);
  if (!call.notification || call.control) return std::nullopt;
  ++due_.calls;
  due_.bytes += Prefix::size + call.bytes;
  if (due_.calls < batch_.calls && due_.bytes < batch_.bytes) return std::nullopt;
  return std::exchange(due_, {});
}

void ServedCalls::cancel(std::uint64_t call_id) {
  const Served* served = calls_.find(call_id);
  if (served == nullptr) return;
  if (const auto call = served->call.lock()) call->cancel();
}

void ServedCalls::cancel_all() {
  for (const auto& call : all())
    if (!call->is_notification()) call->cancel();
}

// The result owns the calls, because a call that ends meanwhile removes itself.
ServedCalls::Calls ServedCalls::all() const {
  std::map<std::uint64_t, std::shared_ptr<IncomingCall>> by_id;
  calls_.for_each([&](std::uint64_t id, const Served& served) {
    if (auto call = served.call.lock()) by_id.emplace(id, std::move(call));
  });
  Calls calls;
  for (auto& [id, call] : by_id) calls.push_back(std::move(call));
  return calls;
}

}  // namespace weft::rpc

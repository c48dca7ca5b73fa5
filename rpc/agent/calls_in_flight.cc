#include <weft/rpc/agent/calls_in_flight.h>

#include <weft/rpc/core/log.h>
#include <weft/rpc/core/mutex.h>
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

// Each loop adds its calls. The last loop calls done().
class Collector {
 public:
  Collector(std::shared_ptr<AgentCore> core, UniqueFunction<void(CallsInFlight)> done,
            const IncomingCall* omitted)
      : core_(std::move(core)), done_(std::move(done)), omitted_(omitted) {
    calls_.name = core_->id().name;
    calls_.incarnation = core_->id().incarnation;
    calls_.handler_threads = core_->options().handler_threads;
    silent_ = core_->loops().size();
  }

  void collect(const Loop& loop) {
    const auto now = loop.now();
    std::vector<MadeCall> made;
    std::vector<ServedCall> served;
    const auto note = [&](const auto& calls, std::string_view state) {
      for (const auto& call : calls)
        if (!call->finished()) made.push_back(describe(*call, state, now));
    };
    // Iterates over copies of the tables: if a call completes meanwhile, this function may be its last owner,
    // and the destruction of a call changes the tables.
    for (const auto& route : core_->routes().all())
      if (route->loop().get() == &loop) note(std::deque(route->waiting()), made_connecting);
    for (const auto& session : core_->sessions().all()) {
      if (!session->is_at(loop)) continue;
      note(session->calls().in_flight(), made_sent);
      note(session->calls().held(), session->is_connected() ? made_held : made_connecting);
      for (const auto& call : session->served().all())
        if (call.get() != omitted_ && !call->answered()) served.push_back(describe(*call, loop, now));
    }
    MutexLock lock(mutex_);
    calls_.made.insert(calls_.made.end(), made.begin(), made.end());
    calls_.served.insert(calls_.served.end(), served.begin(), served.end());
    if (--silent_ != 0 || !done_) return;
    auto done = std::exchange(done_, nullptr);
    CallsInFlight calls = take();
    lock.unlock();
    done(std::move(calls));
  }

  // Returns the calls so far; done() will not be called.
  CallsInFlight give_up() {
    MutexLock lock(mutex_);
    done_ = nullptr;
    return take();
  }

 private:
  CallsInFlight take() WEFT_REQUIRES(mutex_) {
    CallsInFlight calls = std::exchange(calls_, {});
    calls.silent_loops = silent_;
    const auto older = [](const auto& a, const auto& b) { return a.age > b.age; };
    std::stable_sort(calls.made.begin(), calls.made.end(), older);
    std::stable_sort(calls.served.begin(), calls.served.end(), older);
    return calls;
  }

  const std::shared_ptr<AgentCore> core_;
  Mutex mutex_;
  UniqueFunction<void(CallsInFlight)> done_ WEFT_GUARDED_BY(mutex_);
  const IncomingCall* const omitted_;
  CallsInFlight calls_ WEFT_GUARDED_BY(mutex_);
  std::size_t silent_ WEFT_GUARDED_BY(mutex_) = 0;  // loops that have not answered yet
};

// Collects the calls of every loop. `done` is called on one of the loops when all loops have answered. If a
// loop hangs, `done` is never called. omitted: a call to omit; null: none.
std::shared_ptr<Collector> begin(const std::shared_ptr<AgentCore>& core,
                                 UniqueFunction<void(CallsInFlight)> done, const IncomingCall* omitted) {
  auto collector = std::make_shared<Collector>(core, std::move(done), omitted);
  for (const auto& loop : core->loops())
    loop->post([collector, loop = loop.get()] { collector->collect(*loop); });
  return collector;
}

std::string text_of(const CallName& call) { return call.caller + "#" + std::to_string(call.id); }

std::string time_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f s", seconds);
  return text;
}

}  // namespace

CallsInFlight calls_in_flight(const std::shared_ptr<AgentCore>& core, std::chrono::nanoseconds timeout) {
  Promise<CallsInFlight> promise;
  auto future = promise.future();
  const auto collector = begin(
      core,
      [promise = std::move(promise)](CallsInFlight calls) mutable { promise.complete(std::move(calls)); },
      nullptr);
  try {
    return future.get(timeout);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::deadline_exceeded) throw;
  }
  CallsInFlight some = collector->give_up();
  // Without a promise, the future fails. But the last loop may have answered after the timeout.
  Result<CallsInFlight> late = capture([&] { return future.get(); });
  return late.ok() ? std::move(late).get() : std::move(some);
}

MethodEntry pending_entry() {
  MethodEntry entry = detail::own_entry<CallsInFlight>(pending_method);
  entry.run = [](std::shared_ptr<IncomingCall> call) {
    const auto core = AgentCore::of(*call);
    const IncomingCall* omitted = call.get();
    begin(
        core,
        [call = std::move(call)](CallsInFlight calls) {
          detail::answer<CallsInFlight>(*call, std::move(calls));
        },
        omitted);
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

#include <weft/rpc/call/method_gate.h>

#include <weft/rpc/call/call_host.h>
#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/core/while_alive.h>

#include <algorithm>

namespace weft::rpc {

MethodGate::MethodGate(MethodLimit limit) : limit_(limit) {
  if (limit.running == 0)
    throw Error(ErrorKind::invalid_argument, "a method's limit of running calls is 0, expected at least 1");
}

void MethodGate::enter(const std::shared_ptr<IncomingCall>& call) {
  MutexLock lock(mutex_);
  if (running_ < limit_.running) {
    ++running_;
    lock.unlock();
    return call->admitted(shared_from_this());
  }
  if (waiting_.size() >= limit_.waiting) {
    lock.unlock();
    call->host()->counters().calls_shed.add();
    return call->refuse(Error(ErrorKind::resource_exhausted,
                              "too many calls of this method: " + std::to_string(limit_.running) +
                                  " run and " + std::to_string(limit_.waiting) + " wait"));
  }
  waiting_.push_back(call);
  lock.unlock();
  call->on_cancel(while_alive(this, [call = call.get()](MethodGate& gate) { gate.give_up(call); }));
}

void MethodGate::leave() {
  std::shared_ptr<IncomingCall> next;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      --running_;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  // Posts the call: if calls complete at once, a direct call of admitted() would recurse.
  next->executor().post([gate = shared_from_this(), next] { next->admitted(gate); });
}

void MethodGate::give_up(const IncomingCall* call) {
  std::shared_ptr<IncomingCall> gone;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const auto& waiting) { return waiting.get() == call; });
    if (found == waiting_.end()) return;
    gone = std::move(*found);
    waiting_.erase(found);
  }
  gone->refuse(Error(ErrorKind::cancelled, "the call ended before its handler ran"));
}

}  // namespace weft::rpc

// Interceptor: a program's own part in every call of one agent, on both sides: authorisation, quotas,
// metadata, measurements, traces.
//
// Given with AgentOptions::interceptors and asked in their order. An agent without any pays nothing for them.
// Layers of weft use CallHook instead, which sees the wire. Thread-safety: every member may be called from
// several threads at once.
#pragma once

#include <weft/rpc/call/call_context.h>
#include <weft/rpc/call/outgoing_call.h>
#include <weft/rpc/core/task.h>

namespace weft::rpc {

class WEFT_EXPORT Interceptor {
 public:
  virtual ~Interceptor() = default;

  // At the callee, on the call's executor, before the handler: what it throws is the call's answer, and the
  // handler never runs. It may suspend; the call waits for it, and other calls of the same object do not.
  virtual Task<void> accept(CallContext& call) {
    (void)call;
    co_return;
  }
  // At the callee, once, for every call whose handler was reached or refused: the answer is on its way, or
  // has nowhere to go. error: null for a value. Must not block.
  virtual void answered(CallContext& call, const std::exception_ptr& error) noexcept {
    (void)call, (void)error;
  }

  // At the caller, on its thread, before the arguments are encoded: it may set metadata or a deadline, or
  // refuse the call by throwing. serving: the call in whose name this one is made, or null. The returned
  // watch is notified when the call has ended, after all retries. null: no watch.
  virtual std::unique_ptr<CallWatch> calling(OutgoingCall& call, const std::string& peer,
                                             CallContext* serving) {
    (void)call, (void)peer, (void)serving;
    return nullptr;
  }
};

}  // namespace weft::rpc

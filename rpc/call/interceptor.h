// Interceptor: takes part in every call of one agent, on both sides: for authorization, quotas, metadata,
// measurements, traces.
//
// AgentOptions::interceptors lists them; they are called in that order. An agent without interceptors has no
// cost for them. Layers of weft use CallHook instead, which has access to the wire. Owned by the agent.
// Thread-safety: every function may be called from several threads at once.
#pragma once

#include <weft/rpc/call/call_context.h>
#include <weft/rpc/call/outgoing_call.h>
#include <weft/rpc/core/task.h>

namespace weft::rpc {

class WEFT_EXPORT Interceptor {
 public:
  virtual ~Interceptor() = default;

  // At the callee, on the call's executor, before the handler. If it throws, the call fails with that error
  // and the handler does not run. If it suspends, the call waits, and other calls of the same object
  // continue.
  virtual Task<void> accept(CallContext& call) {
    (void)call;
    co_return;
  }
  // At the callee, once for every call that was refused or whose handler ran, before the answer is sent.
  // error: null if the call has succeeded. Must not block.
  virtual void answered(CallContext& call, const std::exception_ptr& error) noexcept {
    (void)call, (void)error;
  }

  // At the caller, on the thread that makes the call, before the arguments are encoded. It may set metadata
  // or a deadline, or refuse the call by throwing. serving: the call on whose behalf this one is made, or
  // null. The returned watch, which may be null, is notified when the call has ended, after all retries.
  virtual std::unique_ptr<CallWatch> calling(OutgoingCall& call, const std::string& peer,
                                             CallContext* serving) {
    (void)call, (void)peer, (void)serving;
    return nullptr;
  }
};

}  // namespace weft::rpc

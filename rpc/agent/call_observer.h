// CallObserver: sees the calls that one agent makes and serves begin and end: metrics and traces are made of
// it.
//
// Installed by a layer while the agent is made (AgentCore::add_observer), and kept until the agent is gone.
// Called on whatever thread a call begins or ends on, by several at once; must neither block nor throw. An
// agent without observers does nothing for them.
#pragma once

#include <weft/rpc/agent/incoming_call.h>
#include <weft/rpc/agent/outgoing_call.h>
#include <weft/rpc/agent/pending_call.h>

#include <chrono>
#include <optional>

namespace weft::rpc {

class WEFT_EXPORT CallObserver {
 public:
  virtual ~CallObserver() = default;

  // A call is being made, before its arguments are encoded: parts may be added to it. parent: in whose name,
  // or null. One that is never sent may follow with no made(), but its parts are ended.
  virtual void making(OutgoingCall& call, CallContext* parent) { (void)call, (void)parent; }
  // It is over; took: since it was made. error: none where it went well, or a notification has left.
  virtual void made(const PendingCall& call, std::chrono::nanoseconds took, std::optional<ErrorKind> error) {
    (void)call, (void)took, (void)error;
  }

  // A request was accepted, on its link's loop, before hooks and handler see it. What was refused before
  // (permissions, limits, a draining agent) is told of by AgentCounts only.
  virtual void accepted(IncomingCall& call) { (void)call; }
  // It has been answered, or would have been, were it no notification; took: since it was accepted.
  virtual void answered(IncomingCall& call, std::chrono::nanoseconds took, std::optional<ErrorKind> error) {
    (void)call, (void)took, (void)error;
  }
};

}  // namespace weft::rpc

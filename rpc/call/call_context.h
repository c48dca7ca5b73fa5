// CallContext: the call that a handler serves. The calls that the handler makes with `peer.with(call)`
// inherit the deadline, the cancellation, and the sections of layers above (pass, trace).
//
// The context exists until the call is answered. Thread-safety: the functions may be called from any thread,
// except slots(), which only the handler may call.
#pragma once

#include <weft/rpc/call/cancel_source.h>
#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/slots.h>

#include <memory>
#include <optional>
#include <string>

namespace weft::rpc {

class CallHost;

inline constexpr std::string_view metadata_section = "meta";  // text by key, set by the caller

// The caller.
struct Caller {
  AgentId id;            // as the peer states it; not proven
  std::string identity;  // the proven identity of the peer (docs/security.md); empty: none
  std::string address;
};

class WEFT_EXPORT CallContext : public CancelSource, public std::enable_shared_from_this<CallContext> {
 public:
  virtual ~CallContext() = default;

  // The caller, and the name of the method ("service.method"). Both are valid until the call is answered.
  virtual const Caller& peer() const = 0;
  virtual std::string_view method() const = 0;
  // The deadline by this agent's clock: the arrival of the request plus the remaining time that the request
  // states. nullopt: the call has no deadline.
  virtual std::optional<Clock::time_point> deadline() const = 0;
  // The number of earlier attempts of this call. If the number is above 0, an earlier attempt may have run.
  virtual std::uint16_t attempt() const = 0;
  // Whether the caller has cancelled the call, the caller is gone, or the deadline has passed.
  virtual bool cancelled() const = 0;
  // Text that the caller sent with the arguments (Peer::with_metadata, OutgoingCall::set_metadata). nullopt:
  // the caller did not set this key.
  virtual std::optional<std::string> metadata(const std::string& key) = 0;
  virtual const std::shared_ptr<CallHost>& host() const = 0;  // the agent that serves the call
  // Data that layers attach to the call.
  Slots& slots() { return slots_; }

 private:
  Slots slots_;
};

}  // namespace weft::rpc

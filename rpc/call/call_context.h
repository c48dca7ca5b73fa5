// CallContext: what a handler may know of the call that it serves, and hands on to the calls that it makes:
// `peer.with(call)` carries its deadline, its cancellation and what layers above put into it (pass, trace).
//
// Lives until the call is answered. Thread-safety: the members may be called from any thread, slots() only
// from the handler.
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

// Who called, as far as the connection proves it.
struct Caller {
  AgentId id;            // as the peer states it
  std::string identity;  // proven by its credentials; empty without
  std::string address;
};

class WEFT_EXPORT CallContext : public CancelSource, public std::enable_shared_from_this<CallContext> {
 public:
  virtual ~CallContext() = default;

  virtual const Caller& peer() const = 0;
  virtual std::string_view method() const = 0;
  virtual std::optional<Clock::time_point> deadline() const = 0;
  // How often the caller tried this call before: more than 0 is a retry, and an earlier attempt may have run.
  virtual std::uint16_t attempt() const = 0;
  // Somebody no longer wants the result, or the deadline has passed.
  virtual bool cancelled() const = 0;
  // Text that the caller sent with the arguments (Peer::with_metadata, OutgoingCall::set_metadata); none
  // where it set nothing.
  virtual std::optional<std::string> metadata(const std::string& key) = 0;
  virtual const std::shared_ptr<CallHost>& host() const = 0;  // the agent that serves the call
  Slots& slots() { return slots_; }

 private:
  Slots slots_;
};

}  // namespace weft::rpc

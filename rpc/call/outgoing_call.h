// OutgoingCall: a call under construction. Owned by the caller until it is passed to a peer's route.
//
// Layers above take part with CallParts. An argument that changes the call instead of being sent as a value
// (a pass) is a CallModifier. Thread-safety: one thread at a time.
#pragma once

#include <weft/rpc/call/call_options.h>
#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/wire/message.h>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

class CallContext;
class OutgoingCall;

// Notified once when a call has ended.
class WEFT_EXPORT CallWatch {
 public:
  virtual ~CallWatch() = default;
  // Called on any thread. error: null if the call has succeeded.
  virtual void ended(const std::exception_ptr& error) noexcept = 0;
};

// Precedes the arguments of a call and changes the call: `peer.call<&T::f>(pass, x)`.
class WEFT_EXPORT CallModifier {
 public:
  virtual ~CallModifier() = default;
  // Called once, on the caller's thread, before the arguments are encoded. If it throws, the call is not made
  // and the caller receives the exception.
  virtual void apply(OutgoingCall& call) const = 0;
};

// The properties of a call that stay the same for each of its attempts.
struct CallSettings {
  std::uint64_t signature = 0;
  bool notify = false;
  // The method has MethodEntry::control. Such a call is also sent to a peer that is leaving, and uses no
  // credit, but never starts a connection.
  bool control = false;
  bool background = false;  // the method has the option `background`
  bool fail_fast = false;   // CallOptions::fail_fast
  // The notification completes when the callee has accepted it. false: when it was sent.
  bool acknowledged = false;
  std::optional<Clock::time_point> deadline;  // nullopt: none
  // The call fails if another incarnation of the peer is reached; null: any incarnation.
  std::shared_ptr<const AgentId> only;
  std::shared_ptr<const RetryPolicy> retry;  // null: no retries
  bool idempotent = false;                   // the call may be retried even if it may have run
  bool wait_for_ready = false;               // CallOptions::wait_for_ready
  std::optional<std::chrono::nanoseconds> connect_within;
  std::uint16_t attempt = 0;           // the number of earlier attempts
  std::weak_ptr<CallContext> serving;  // the call on whose behalf this one is made
};

class WEFT_EXPORT OutgoingCall : public CallSettings {
 public:
  // id: name_hash(method).
  OutgoingCall(std::string_view method, std::uint64_t id, std::size_t arguments);
  OutgoingCall(OutgoingCall&&) noexcept = default;
  OutgoingCall& operator=(OutgoingCall&&) = delete;
  // If the call was never submitted, for example because an argument could not be encoded, notifies its parts
  // and watches.
  ~OutgoingCall();

  // The name of the method ("service.method"), and the request. Valid until the call is submitted.
  std::string_view method() const { return method_; }
  OutgoingMessage& message() { return *message_; }
  // The parts of layers in this call. Add them before begin(). end() adds the parts of the arguments.
  void add_part(std::shared_ptr<CallPart> part) { parts_.push_back(std::move(part)); }
  const std::vector<std::shared_ptr<CallPart>>& parts() const { return parts_; }
  // Data that layers attach to the call until it is submitted.
  Slots& slots() { return slots_; }
  // The watch is notified at the end of the call, after all retries, or if the call is never submitted.
  void add_watch(std::unique_ptr<CallWatch> watch) { watches_.push_back(std::move(watch)); }
  // For interceptors and layers, for example "traceparent" of a trace. Call it before end(). Programs use
  // Peer::with_metadata().
  void set_metadata(std::string key, std::string value);

  // Encode the values between these two calls.
  void begin();
  void end();

 private:
  friend class PendingCall;
  friend class RetriedCall;
  OutgoingCall(std::string_view method, std::uint64_t id, std::unique_ptr<OutgoingMessage> message);
  std::string method_;
  std::uint64_t id_;
  std::unique_ptr<OutgoingMessage> message_;
  std::vector<std::shared_ptr<CallPart>> parts_;
  Slots slots_;
  std::vector<std::unique_ptr<CallWatch>> watches_;
  Metadata metadata_;
};

}  // namespace weft::rpc

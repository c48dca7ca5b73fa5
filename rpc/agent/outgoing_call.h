// OutgoingCall: a call while it is being made. Owned by its maker until it is handed to a peer's route.
//
// Layers above take part through parts; arguments that are not values but change the call (a pass) are
// CallModifiers. Thread-safety: one thread at a time.
#pragma once

#include <weft/rpc/agent/call_options.h>
#include <weft/rpc/agent/call_part.h>
#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/loop.h>

#include <memory>
#include <string_view>
#include <vector>

namespace weft::rpc {

class CallContext;
class OutgoingCall;

// Stands before the arguments of a call and changes it: `peer.call<&T::f>(pass, x)`.
class WEFT_EXPORT CallModifier {
 public:
  virtual ~CallModifier() = default;
  virtual void apply(OutgoingCall& call) const = 0;
};

class WEFT_EXPORT OutgoingCall {
 public:
  // id: name_hash(method).
  OutgoingCall(std::string_view method, std::uint64_t id, std::size_t arguments);
  OutgoingCall(OutgoingCall&&) noexcept = default;
  OutgoingCall& operator=(OutgoingCall&&) = delete;
  ~OutgoingCall();  // ends its parts where it was never handed over: an argument could not be encoded

  std::string_view method() const { return method_; }
  OutgoingMessage& message() { return *message_; }
  void add_part(std::shared_ptr<CallPart> part) { parts_.push_back(std::move(part)); }
  const std::vector<std::shared_ptr<CallPart>>& parts() const { return parts_; }
  Slots& slots() { return slots_; }

  // Between these the values are encoded.
  void begin();
  void end();

  std::uint64_t signature = 0;
  bool notify = false;
  std::optional<Clock::time_point> deadline;
  std::shared_ptr<const AgentId> only;  // refuse to speak to another life of the peer

 private:
  friend class PendingCall;
  std::string method_;
  std::uint64_t id_;
  std::unique_ptr<OutgoingMessage> message_;
  std::vector<std::shared_ptr<CallPart>> parts_;
  Slots slots_;
};

}  // namespace weft::rpc

// OutgoingMessage and IncomingMessage: a frame's header while it is being written, and after it has arrived.
//
// A message is owned by the call that it belongs to (unique_ptr while written, shared_ptr while read, since
// decoded values may point into it). Layers above RPC add sections and slots, never fields. Thread-safety:
// one thread at a time.
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/inside.h>
#include <weft/rpc/core/process_id.h>
#include <weft/rpc/core/slots.h>
#include <weft/rpc/wire/frame.h>
#include <weft/rpc/wire/value.h>

#include <array>
#include <memory>
#include <optional>
#include <string>

namespace weft::rpc {

class CallContext;
class CallPart;

inline constexpr std::size_t max_name_bytes = 255;  // of an agent

// Joins the connections of one peer that carry its large attachments.
using LaneKey = std::array<std::uint64_t, 2>;

// What a side says of itself in the handshake.
struct HelloInfo {
  std::uint16_t version_min = 1, version_max = 1;
  std::uint64_t features = 0;
  std::string name;
  std::uint64_t incarnation = 0;
  std::vector<std::string> addresses;
  std::uint32_t max_calls = 0;  // credit that this side gives; 0: it does not count
  std::uint64_t max_bytes = 0;
  // Of one frame that this side takes: bytes of its header and of its body, attachments; 0: it does not say.
  std::uint32_t max_header = 0;
  std::uint64_t max_body = 0;
  std::uint32_t max_attachments = 0;
  std::uint16_t lanes = 0;  // that this side uses at the most
  LaneKey lane_key{};
  ProcessId process;  // of the agent, for peers on its host
};

// How a connection becomes a lane of another.
struct LaneInfo {
  LaneKey key{};  // from the hello of the connection that it belongs to
  std::uint16_t index = 0, count = 0;
};

// Credit that notifications give back.
struct CreditInfo {
  std::uint32_t calls = 0;
  std::uint64_t bytes = 0;
};

// What a request's header says, in addition to its arguments.
struct RequestInfo {
  std::uint64_t method = 0;
  std::uint64_t signature = 0;
  std::uint64_t timeout_ns = 0;  // 0: no deadline
  std::uint16_t attempt = 0;     // how often it was tried before
  std::uint32_t accepted = 0;    // of a resumable request: see message.capnp
};

// How a call failed.
struct FailureInfo {
  ErrorKind kind = ErrorKind::internal;
  std::string message, worker, method, type;
  bool not_run = false;  // the handler never began
  std::shared_ptr<const ErrorPayload> payload = nullptr;
};

// Says which incarnation of a peer a message goes to. Outlives the writing of the message.
class WEFT_EXPORT Destination {
 public:
  virtual ~Destination() = default;
  virtual std::shared_ptr<const AgentId> identity() const = 0;  // null: not known yet
};

class WEFT_EXPORT OutgoingMessage {
 public:
  // Messages of calls, whose values follow; and complete frames of the other kinds.
  static std::unique_ptr<OutgoingMessage> request(std::size_t arguments);
  static std::unique_ptr<OutgoingMessage> reply();
  static OutboundFrame hello(const HelloInfo& info);
  static OutboundFrame goodbye(std::optional<Error> reason);
  static OutboundFrame failure(std::uint64_t call_id, const FailureInfo& failure);
  static OutboundFrame plain(FrameKind kind, std::uint64_t id);  // ping, pong, cancel
  static OutboundFrame lane(const LaneInfo& info);
  static OutboundFrame credit(const CreditInfo& credit);
  // The request of a sealed frame once more: it can be sealed with another id, deadline and attempt.
  static std::unique_ptr<OutgoingMessage> again(const OutboundFrame& sealed);
  ~OutgoingMessage();

  ValueWriter argument(std::size_t i);  // of a request
  ValueWriter result();                 // of a reply
  // A layer's data. required: the receiver refuses the message unless it knows the key. attach(): returns the
  // index of the attachment.
  ValueWriter section(std::string_view key, bool required);
  std::uint32_t attach(Buffer bytes);
  std::uint64_t bytes();                 // header and attachments, as far as they are written
  std::uint64_t attached_bytes() const;  // of attachments, as far as they are attached
  std::uint64_t header_bytes();          // as far as it is written

  // `unchanged` is asked after the bytes have left: an argument that was borrowed must not have been
  // modified.
  void borrow(UniqueFunction<bool()> unchanged) { borrowed_.push_back(std::move(unchanged)); }
  std::vector<UniqueFunction<bool()>> take_borrowed() { return std::move(borrowed_); }
  // Of a request: told once which incarnation of the peer it goes to, on that connection's loop, just before
  // it goes.
  using Leaving = UniqueFunction<void(const AgentId&)>;
  void when_leaving(Leaving job) { leaving_.push_back(std::move(job)); }
  std::vector<Leaving> take_leaving() { return std::move(leaving_); }
  Slots& slots() { return slots_; }
  bool is_reply() const { return is_reply_; }
  bool is_notification() const {
    return is_notification_;
  }  // nobody answers; known from OutgoingCall::begin() on
  void set_notification(bool notification) { is_notification_ = notification; }

  // Where the message goes, for codecs of layers above: the sending agent's layers, and the peer, which is
  // asked for at most once.
  void set_route(const Slots* layers, const Destination* to) {
    layers_ = layers;
    to_ = to;
  }
  const Slots* layers() const { return layers_; }
  const Destination* route() const { return to_; }  // null: of a reply
  // Of a reply: the call that it answers.
  void set_serving(CallContext* call) { serving_ = call; }
  CallContext* serving() const { return serving_; }
  const std::shared_ptr<const AgentId>& destination() {  // null: not known yet
    if (destination_ == nullptr && to_ != nullptr) destination_ = to_->identity();
    return destination_;
  }
  void set_destination(std::shared_ptr<const AgentId> id) {
    destination_ = std::move(id);
    bound_ = true;
  }
  // The one incarnation that this message can reach; null: whichever there is when it is sent.
  std::shared_ptr<const AgentId> only_destination() const { return bound_ ? destination_ : nullptr; }
  // What was written is meant for that incarnation of the peer: the message goes to it, or not at all.
  void bind_destination() { bound_ = true; }
  bool bound() const { return bound_; }
  // The message outlives the loss of the connection that it is sent over (rpc/agent/session.h).
  void set_resumable() { is_resumable_ = true; }
  bool is_resumable() const { return is_resumable_; }
  // A codec that finds that its layer has to take part in this call.
  void add_part(std::shared_ptr<CallPart> part) { late_parts_.push_back(std::move(part)); }
  std::vector<std::shared_ptr<CallPart>> take_parts() { return std::move(late_parts_); }

  // Ends the writing. The message must outlive the frame's first send only where a layer above says so.
  OutboundFrame seal_request(const RequestInfo& info, std::uint64_t call_id, std::uint16_t flags);
  OutboundFrame seal_reply(std::uint64_t call_id, std::uint16_t flags = 0);

  struct Content;

 private:
  OutgoingMessage();
  OutboundFrame seal(FrameKind kind, std::uint64_t call_id, std::uint16_t flags);

  Inside<Content, 640> content_;
  std::vector<Buffer> attachments_;
  std::uint64_t attached_bytes_ = 0;
  std::vector<UniqueFunction<bool()>> borrowed_;
  std::vector<Leaving> leaving_;
  Slots slots_;
  bool is_reply_ = false;
  bool is_notification_ = false;
  bool bound_ = false;
  bool is_resumable_ = false;
  const Slots* layers_ = nullptr;
  const Destination* to_ = nullptr;
  CallContext* serving_ = nullptr;
  std::shared_ptr<const AgentId> destination_;
  std::vector<std::shared_ptr<CallPart>> late_parts_;
};

class WEFT_EXPORT IncomingMessage {
 public:
  // Of a frame that has passed check_header, as all have that a Connection delivers. Throws protocol_error.
  IncomingMessage(InboundFrame frame, const Limits& limits);
  ~IncomingMessage();

  // What the header says. Each for the kind of frame that has it.
  const Prefix& prefix() const;
  HelloInfo hello() const;
  RequestInfo request() const;
  std::optional<Error> goodbye() const;
  CreditInfo credit() const;
  LaneInfo lane() const;
  std::size_t argument_count() const;
  ValueReader argument(std::size_t i);
  std::optional<FailureInfo> failure() const;  // of a reply
  ValueReader result();                        // of a reply
  // Sections of layers above, by key; nothing: the message has no such section.
  bool has_sections() const;
  std::optional<ValueReader> section(std::string_view key);
  // The first required section whose key `known` does not accept.
  std::optional<std::string> unknown_required(const UniqueFunction<bool(std::string_view)>& known) const;

  std::size_t attachment_count() const;                 // checked against the frame
  const Buffer& attachment(std::uint32_t index) const;  // throws protocol_error
  std::uint64_t bytes() const;                          // header and attachments
  Slots& slots() { return slots_; }                     // of layers above

  struct Content;
  Content& content();  // for the sources of this folder

 private:
  Inside<Content, 640> content_;
  Slots slots_;
};

}  // namespace weft::rpc

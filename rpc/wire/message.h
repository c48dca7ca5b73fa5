// OutgoingMessage and IncomingMessage: the header of a frame while it is written, and after it has been
// received.
//
// The call owns its message (by unique_ptr while it is written, by shared_ptr while it is read, because
// decoded values may point into it). Layers above RPC add sections and slots, not fields. Thread-safety: one
// thread at a time.
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

class CallPart;

inline constexpr std::size_t max_name_bytes = 255;  // the maximum length of an agent's name

// The contents of a hello, about the sending side.
struct HelloInfo {
  std::uint16_t version_min = 1, version_max = 1;
  std::uint64_t features = 0;
  std::string name;
  std::uint64_t incarnation = 0;
  std::vector<std::string> addresses;
  std::uint32_t max_calls = 0;  // the credit that this side grants; 0: unlimited
  std::uint64_t max_bytes = 0;
  // The limits of this side for one frame: bytes of the header and of the body, and attachments; 0: not
  // stated.
  std::uint32_t max_header = 0;
  std::uint64_t max_body = 0;
  std::uint32_t max_attachments = 0;
  std::uint16_t lanes = 0;        // the maximum number of lanes of this side
  std::uint64_t lane_key = 0;     // 0: the connection is not a lane
  ProcessId process;              // the agent's process, for peers on its host
  std::uint64_t max_replies = 0;  // bytes of replies in flight that this side accepts; 0: not stated
};

// The connection that a session uses (message.capnp).
struct ResumeInfo {
  std::uint64_t session = 0, epoch = 0, accepted = 0;
  bool is_new = false;
};

// Credit that the receiver of notifications returns.
struct CreditInfo {
  std::uint32_t calls = 0;
  std::uint64_t bytes = 0;
};

// The fields of a request's header, in addition to its arguments.
struct RequestInfo {
  std::uint64_t method = 0;
  std::uint64_t signature = 0;
  std::uint64_t timeout_ns = 0;  // 0: no deadline
  std::uint16_t attempt = 0;     // the number of earlier attempts
  std::uint32_t accepted = 0;    // message.capnp
};

// The error of a call.
struct FailureInfo {
  ErrorKind kind = ErrorKind::internal;
  std::string message, worker, method, type;
  bool not_run = false;  // the handler did not start
  std::shared_ptr<const ErrorPayload> payload = nullptr;
};

// Identifies the incarnation of the peer to which a message is sent. Must outlive the writing of the message.
class WEFT_EXPORT Destination {
 public:
  virtual ~Destination() = default;
  virtual std::shared_ptr<const AgentId> identity() const = 0;  // null: not known yet
};

// The call that a reply answers, for codecs; rpc/call defines it. Outlives the writing of the reply.
class WEFT_EXPORT AnsweredCall {
 protected:
  ~AnsweredCall() = default;
};

class WEFT_EXPORT OutgoingMessage {
 public:
  // Messages of calls, to be filled with values, and complete frames of the other kinds.
  static std::unique_ptr<OutgoingMessage> request(std::size_t arguments);
  static std::unique_ptr<OutgoingMessage> reply();
  static OutboundFrame hello(const HelloInfo& info);
  static OutboundFrame goodbye(std::optional<Error> reason);
  static OutboundFrame failure(std::uint64_t call_id, const FailureInfo& failure);
  static OutboundFrame plain(FrameKind kind, std::uint64_t id);  // ping, pong, cancel, received
  static OutboundFrame resume(const ResumeInfo& info);
  static OutboundFrame credit(const CreditInfo& credit);
  // A copy of a sealed request. The copy can be sealed with another id, deadline and attempt.
  static std::unique_ptr<OutgoingMessage> again(const OutboundFrame& sealed);
  ~OutgoingMessage();

  ValueWriter argument(std::size_t i);  // of a request
  ValueWriter result();                 // of a reply
  // section(): adds the data of a layer. required: true if a receiver that does not know the key must refuse
  // the message. attach(): adds an attachment, and returns its index.
  ValueWriter section(std::string_view key, bool required);
  std::uint32_t attach(Buffer bytes);
  // Bytes written so far: header and attachments, attachments, and header.
  std::uint64_t bytes() { return header_bytes() + attached_bytes_; }
  std::uint64_t attached_bytes() const { return attached_bytes_; }
  std::uint64_t header_bytes();

  // `unchanged` is called after the bytes have been sent. It returns false if the program has modified the
  // borrowed argument.
  void borrow(UniqueFunction<bool()> unchanged) { borrowed_.push_back(std::move(unchanged)); }
  std::vector<UniqueFunction<bool()>> take_borrowed() { return std::move(borrowed_); }
  // For a request: `job` is called once, just before the message is sent, on the connection's loop, with the
  // incarnation of the peer that receives the message.
  using Leaving = UniqueFunction<void(const AgentId&)>;
  void when_leaving(Leaving job) { leaving_.push_back(std::move(job)); }
  std::vector<Leaving> take_leaving() { return std::move(leaving_); }
  Slots& slots() { return slots_; }
  bool is_reply() const { return is_reply_; }
  bool is_notification() const { return is_notification_; }
  void set_notification(bool notification) { is_notification_ = notification; }

  // The destination, for codecs of higher layers. layers: the layers of the sending agent. to: the peer;
  // destination() queries the peer's identity until the identity is known.
  void set_route(const Slots* layers, const Destination* to) {
    layers_ = layers;
    to_ = to;
  }
  const Slots* layers() const { return layers_; }
  const Destination* route() const { return to_; }  // null for a reply
  // For a reply: the call that it answers.
  void set_serving(AnsweredCall* call) { serving_ = call; }
  AnsweredCall* serving() const { return serving_; }
  const std::shared_ptr<const AgentId>& destination() {  // null: not known yet
    if (destination_ == nullptr && to_ != nullptr) destination_ = to_->identity();
    return destination_;
  }
  void set_destination(std::shared_ptr<const AgentId> id) {
    destination_ = std::move(id);
    bound_ = true;
  }
  // The only incarnation that this message may reach; null: any incarnation that exists when it is sent.
  std::shared_ptr<const AgentId> only_destination() const { return bound_ ? destination_ : nullptr; }
  // Call it if the contents depend on destination(). The message then reaches this incarnation, or fails.
  void bind_destination() { bound_ = true; }
  bool bound() const { return bound_; }
  // For a codec whose layer must take part in this call.
  void add_part(std::shared_ptr<CallPart> part) { late_parts_.push_back(std::move(part)); }
  std::vector<std::shared_ptr<CallPart>> take_parts() { return std::move(late_parts_); }

  // Completes the message. After that, the message may be destroyed, unless a higher layer needs it.
  OutboundFrame seal_request(const RequestInfo& info, std::uint64_t call_id, std::uint16_t flags);
  OutboundFrame seal_reply(std::uint64_t call_id);

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
  const Slots* layers_ = nullptr;
  const Destination* to_ = nullptr;
  AnsweredCall* serving_ = nullptr;
  std::shared_ptr<const AgentId> destination_;
  std::vector<std::shared_ptr<CallPart>> late_parts_;
};

class WEFT_EXPORT IncomingMessage {
 public:
  // frame: it has passed check_header(), like all frames from a Connection. Throws protocol_error if the
  // header is malformed.
  IncomingMessage(InboundFrame frame, const Limits& limits);
  ~IncomingMessage();

  // The contents of the header; call the function for the frame's kind.
  const Prefix& prefix() const;
  HelloInfo hello() const;
  RequestInfo request() const;
  std::optional<Error> goodbye() const;
  CreditInfo credit() const;
  ResumeInfo resume() const;
  std::size_t argument_count() const;
  ValueReader argument(std::size_t i);
  std::optional<FailureInfo> failure() const;  // of a reply
  ValueReader result();                        // of a reply
  // Sections of higher layers, by key; empty if the message has no such section.
  bool has_sections() const;
  std::optional<ValueReader> section(std::string_view key);
  // The key of the first required section for which `known` returns false. nullopt: none.
  std::optional<std::string> unknown_required(UniqueFunction<bool(std::string_view)> known) const;

  std::size_t attachment_count() const;                             // checked against the frame
  const Buffer& attachment(std::uint32_t index) const;              // throws protocol_error
  std::uint64_t bytes() const { return prefix().message_bytes(); }  // header and attachments
  Slots& slots() { return slots_; }                                 // data of higher layers

  struct Content;
  Content& content();  // for the sources of this directory

 private:
  Inside<Content, 640> content_;
  Slots slots_;
};

// A layer's part in one call, at the caller or at the callee. RRefs and passes use parts. The caller's part
// writes the request and reads the reply; the callee's part reads the request and writes the reply. The
// functions are called in this order, never concurrently, possibly on different threads. The part is
// destroyed with the call.
class WEFT_EXPORT CallPart {
 public:
  virtual ~CallPart() = default;
  virtual void write(OutgoingMessage&) {}  // before the values are encoded
  virtual void seal(OutgoingMessage&) {}   // after the values are encoded
  virtual void read(IncomingMessage&) {}   // before the values are decoded
  // For the caller's part: the call has ended. error: null if a reply without a failure was read, or if a
  // notification has been sent. For the callee's part: called only if the reply was not sent. error: the
  // reason.
  virtual void ended(const std::exception_ptr& error) { (void)error; }
};

}  // namespace weft::rpc

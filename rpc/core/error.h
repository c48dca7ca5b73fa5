// Errors of weft: a kind that says what the caller can do, and a message for people.
//
// Every future that fails carries an Error (or what a user's own code threw). An error that happened in a
// remote handler is a RemoteError: it names the worker and the method, and keeps the kind that the handler
// gave it. A value may accompany an error: with_payload() and payload<T>() (rpc/codec/error_payload.h).
// Thread-safety: values, like std::runtime_error.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace weft::rpc {

// The numbers travel on the wire and never change their meaning; an unknown one reads as `internal`.
enum class ErrorKind : std::uint16_t {
  // The call itself is wrong: repeating it does not help.
  invalid_argument = 1,     // a value that the callee refuses
  type_mismatch = 2,        // an argument or result that does not fit the declared type
  not_found = 3,            // no such method, object, key or name
  already_exists = 4,       // a name that is taken, conflicting options
  permission_denied = 5,    // not allowed for this peer
  unsupported = 6,          // a feature or a tensor that this build or peer does not have
  failed_precondition = 7,  // right call, wrong state: a closed pass, a missing layer
  argument_modified = 8,    // a borrowed argument changed before it was sent

  // The handler failed.
  handler_failed = 20,  // an exception other than Error left the handler

  // Time and will.
  deadline_exceeded = 30,
  cancelled = 31,
  aborted = 32,  // a common undertaking (a backward, a round, a collective) failed elsewhere

  // The peer or the way to it.
  unavailable = 40,         // could not be reached: try again later
  peer_lost = 41,           // the connection ended with the call under way
  owner_lost = 42,          // the owner of a remote reference is gone
  lease_lost = 43,          // this agent was taken for dead
  shut_down = 44,           // this agent, or the peer, is shutting down
  resource_exhausted = 45,  // a limit was reached
  protocol_error = 46,      // bytes that the protocol forbids: the connection is closed

  internal = 60,  // a fault in weft
};

// What is known of a call that did not complete: whether its handler may have run.
enum class Execution : std::uint8_t { unknown, not_sent, maybe_executed };

// The name of the kind: "peer_lost".
WEFT_EXPORT std::string_view to_string(ErrorKind kind);

// A value that accompanies an error, as it travels. The bytes of a peer are not trusted: they are checked
// when they are decoded.
struct ErrorPayload {
  std::string type;   // its name in the canonical grammar
  std::string bytes;  // packed
};
inline constexpr std::size_t max_error_payload = std::size_t{64} << 10;  // bytes of both

class WEFT_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, Execution execution = Execution::unknown);
  ~Error() override;

  // What the caller can do.
  ErrorKind kind() const { return kind_; }
  // Safe to repeat without asking whether the method is idempotent when this is `not_sent`.
  Execution execution() const { return execution_; }
  const std::shared_ptr<const ErrorPayload>& payload() const { return payload_; }  // may be null
  void set_payload(std::shared_ptr<const ErrorPayload> payload) { payload_ = std::move(payload); }

 private:
  ErrorKind kind_;
  Execution execution_;
  std::shared_ptr<const ErrorPayload> payload_;
};

// An error that a handler on another agent (or on this one, through a call) ended with.
class WEFT_EXPORT RemoteError : public Error {
 public:
  RemoteError(ErrorKind kind, const std::string& message, std::string worker, std::string method,
              std::string type, Execution execution = Execution::maybe_executed);
  ~RemoteError() override;

  // The name of the agent whose handler failed, and the method.
  const std::string& worker() const { return worker_; }
  const std::string& method() const { return method_; }
  const std::string& type() const { return type_; }  // the C++ exception's type, where it was not an Error
  const std::string& detail() const {
    return detail_;
  }  // the handler's own message, without worker and method

 private:
  std::string worker_, method_, type_, detail_;
};

}  // namespace weft::rpc

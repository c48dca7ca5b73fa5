// Errors of weft: a kind, which tells a program what it can do, and a message for users.
//
// Every future that fails has an Error, or the exception that the program's own code threw. An error of a
// remote handler is a RemoteError: it names the worker and the method, and has the kind that the handler
// used. A value may accompany an error: with_payload() and payload<T>() (rpc/codec/error_payload.h).
// Thread-safety: values, like std::runtime_error.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace weft::rpc {

// The numbers are part of the wire protocol and never change. A receiver treats an unknown number as
// `internal`.
enum class ErrorKind : std::uint16_t {
  // The call is wrong: a retry does not help.
  invalid_argument = 1,     // a value that the callee refuses
  type_mismatch = 2,        // an argument or result that does not match the declared type
  not_found = 3,            // no such method, object, key or name
  already_exists = 4,       // the name is in use, or options conflict
  permission_denied = 5,    // not allowed for this peer
  unsupported = 6,          // a feature or tensor that this build or peer does not support
  failed_precondition = 7,  // the call is correct, the state is not: a closed pass, a missing layer
  argument_modified = 8,    // a borrowed argument changed before it was sent

  // The handler failed.
  handler_failed = 20,  // the handler threw an exception other than Error

  // The call was ended early.
  deadline_exceeded = 30,
  cancelled = 31,
  aborted = 32,  // a joint operation (a backward, a round, a collective) failed elsewhere

  // The peer, or the connection to it.
  unavailable = 40,         // the peer could not be reached: retry later
  peer_lost = 41,           // the connection was lost with the call in flight
  owner_lost = 42,          // the owner of a remote reference has ended
  lease_lost = 43,          // other agents consider this agent dead
  shut_down = 44,           // this agent, or the peer, is shutting down
  resource_exhausted = 45,  // a limit has been reached
  protocol_error = 46,      // the bytes violate the protocol, and the connection is closed

  internal = 60,  // a defect in weft
};

// For a call that did not complete: whether its handler may have run.
enum class Execution : std::uint8_t { unknown, not_sent, maybe_executed };

// The name of the kind: "peer_lost".
WEFT_EXPORT std::string_view to_string(ErrorKind kind);
// The kind of a number on the wire.
WEFT_EXPORT ErrorKind error_kind(std::uint16_t number);

// A value that accompanies an error, in encoded form. The bytes may come from a peer, so decoding checks
// them.
struct ErrorPayload {
  std::string type;   // the name of the value's type in the canonical grammar
  std::string bytes;  // packed
};
// The maximum size of `type` and `bytes` together, in bytes.
inline constexpr std::size_t max_error_payload = std::size_t{64} << 10;

class WEFT_EXPORT Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message, Execution execution = Execution::unknown);
  ~Error() override;

  // The kind tells the caller what it can do.
  ErrorKind kind() const { return kind_; }
  // If `not_sent`, a retry is safe even if the method is not idempotent.
  Execution execution() const { return execution_; }
  const std::shared_ptr<const ErrorPayload>& payload() const { return payload_; }  // may be null
  void set_payload(std::shared_ptr<const ErrorPayload> payload) { payload_ = std::move(payload); }

 private:
  ErrorKind kind_;
  Execution execution_;
  std::shared_ptr<const ErrorPayload> payload_;
};

// An error of a handler on another agent (or on this one, through a call).
class WEFT_EXPORT RemoteError : public Error {
 public:
  RemoteError(ErrorKind kind, const std::string& message, std::string worker, std::string method,
              std::string type, Execution execution = Execution::maybe_executed);
  ~RemoteError() override;

  // The name of the agent whose handler failed, and the method.
  const std::string& worker() const { return worker_; }
  const std::string& method() const { return method_; }
  const std::string& type() const { return type_; }  // the type of the C++ exception, if it was not an Error
  const std::string& detail() const { return detail_; }  // the handler's message, without worker and method

 private:
  std::string worker_, method_, type_, detail_;
};

// The exception, if it is an Error, without the members of a derived class. nullopt: it is another exception.
WEFT_EXPORT std::optional<Error> as_error(const std::exception_ptr& error);
// The exception as as_error() returns it. For another exception, an Error `internal` with its text.
WEFT_EXPORT Error error_of(const std::exception_ptr& error);
WEFT_EXPORT bool is_remote(const std::exception_ptr& error);  // whether the exception is a RemoteError
// The kind of the exception, if it is an Error; otherwise the given kind.
WEFT_EXPORT ErrorKind error_kind(const std::exception_ptr& error, ErrorKind otherwise = ErrorKind::internal);
// The text of the exception: what(), if it is a std::exception.
WEFT_EXPORT std::string what_of(const std::exception_ptr& error);

}  // namespace weft::rpc

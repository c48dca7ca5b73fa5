// What an agent says about itself: a callback that the program sets. By default warnings and errors go to
// stderr.
//
// A record's message is complete for people; its fields say the same to programs, in keys that stay
// (log_fields). What a record points to lives as long as the call of the sink.
#pragma once

#include <weft/rpc/core/export.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace weft::rpc {

// How serious a record is.
enum class LogLevel { debug, info, warning, error };

// Values may come from a peer: any bytes.
struct LogField {
  std::string_view key, value;
};

// Keys of fields. A record has those that are known where it is written.
namespace log_fields {
inline constexpr std::string_view peer = "peer";              // its name; before its hello none
inline constexpr std::string_view connection = "connection";  // the transport and the other end
inline constexpr std::string_view identity = "identity";      // what the peer has proven to be
inline constexpr std::string_view method = "method";          // "service.method"
inline constexpr std::string_view call = "call";  // the call's id, unique among its caller's; of a request
inline constexpr std::string_view kind = "kind";  // of the error, as to_string(ErrorKind) has it
inline constexpr std::string_view address = "address";
inline constexpr std::string_view object = "object";  // behind an RRef
}  // namespace log_fields

// One record.
struct LogRecord {
  LogLevel level;
  std::string_view agent;
  std::string_view message;
  std::span<const LogField> fields = {};

  // Empty: the record has no such field.
  std::string_view field(std::string_view key) const {
    for (const LogField& one : fields)
      if (one.key == key) return one.value;
    return {};
  }
};

// Text that a peer may have written, for a terminal or a log: control characters, and bytes that are no
// UTF-8, as \xNN. Lines after the first are indented, so that none passes for a separate record.
WEFT_EXPORT std::string escaped(std::string_view text);

using LogSink = std::function<void(const LogRecord&)>;  // any thread, must not block

}  // namespace weft::rpc

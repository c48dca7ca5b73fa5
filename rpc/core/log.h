// The log of an agent: a callback that the program sets. By default, warnings and errors go to stderr.
//
// The message of a record contains all information for users. The fields contain the same information for
// programs, with stable keys (log_fields). The texts of a record are valid during the call of the sink.
#pragma once

#include <weft/rpc/core/export.h>

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace weft::rpc {

// How serious a record is.
enum class LogLevel { debug, info, warning, error };

// One field. The value may come from a peer, and may contain any bytes.
struct LogField {
  std::string_view key, value;
};

// Keys of fields. A record has the fields whose values are known when it is written.
namespace log_fields {
inline constexpr std::string_view peer = "peer";              // the peer's name; absent before its hello
inline constexpr std::string_view connection = "connection";  // the transport and the other end
inline constexpr std::string_view identity = "identity";      // the proven identity of the peer
inline constexpr std::string_view method = "method";          // "service.method"
inline constexpr std::string_view call = "call";  // the id of the call, unique among the calls of one caller
inline constexpr std::string_view kind = "kind";  // the kind of the error: to_string(ErrorKind)
inline constexpr std::string_view address = "address";
inline constexpr std::string_view object = "object";  // the object behind an RRef
}  // namespace log_fields

// One message of an agent.
struct LogRecord {
  LogLevel level;
  std::string_view agent;
  std::string_view message;
  std::span<const LogField> fields = {};
};

// Text that a peer may have written, made safe for a terminal or a log: control characters, and bytes that
// are not UTF-8, are written as \xNN. Lines after the first are indented, so that none looks like a separate
// record.
WEFT_EXPORT std::string escaped(std::string_view text);

using LogSink = std::function<void(const LogRecord&)>;  // called on any thread; must not block

}  // namespace weft::rpc

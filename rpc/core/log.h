// What an agent says about itself: a callback that the program sets. By default warnings and errors go to
// stderr.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace weft::rpc {

enum class LogLevel { debug, info, warning, error };

struct LogRecord {
  LogLevel level;
  std::string_view agent;
  std::string_view message;
};

using LogSink = std::function<void(const LogRecord&)>;  // any thread, must not block

}  // namespace weft::rpc

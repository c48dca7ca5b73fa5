#include <weft/rpc/observe/spdlog_sink.h>

#include <spdlog/spdlog.h>

#include <algorithm>
#include <string>

namespace weft::observe {
namespace {

spdlog::level::level_enum level_of(rpc::LogLevel level) {
  switch (level) {
    case rpc::LogLevel::debug:
      return spdlog::level::debug;
    case rpc::LogLevel::info:
      return spdlog::level::info;
    case rpc::LogLevel::warning:
      return spdlog::level::warn;
    case rpc::LogLevel::error:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

// Quotes the value unless it can be parsed without quotes. A value may come from a peer, and a record must
// remain one line.
void append_value(std::string& line, std::string_view value) {
  const auto plain = [](unsigned char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\' && c != '='; };
  if (!value.empty() && std::all_of(value.begin(), value.end(), plain)) {
    line += value;
    return;
  }
  std::string quoted;
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    c == '\n' ? quoted += "\\x0a" : quoted += c;  // escaped() would start a new line
  }
  line.append("\"").append(rpc::escaped(quoted)).append("\"");
}

}  // namespace

rpc::LogSink spdlog_sink(std::shared_ptr<spdlog::logger> logger) {
  return [logger = std::move(logger)](const rpc::LogRecord& record) {
    const auto level = level_of(record.level);
    if (!logger->should_log(level) && !logger->should_backtrace()) return;
    std::string line;
    line.append(record.agent).append(": ").append(record.message);
    for (const rpc::LogField& field : record.fields) {
      line.append(" ").append(field.key).append("=");
      append_value(line, field.value);
    }
    logger->log(level, spdlog::string_view_t(line));
  };
}

rpc::LogSink spdlog_sink() { return spdlog_sink(spdlog::default_logger()); }

}  // namespace weft::observe

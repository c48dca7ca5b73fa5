#include <weft/rpc/observe/spdlog_sink.h>

#include <spdlog/spdlog.h>

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

}  // namespace

rpc::LogSink spdlog_sink(std::shared_ptr<spdlog::logger> logger) {
  return [logger = std::move(logger)](const rpc::LogRecord& record) {
    logger->log(level_of(record.level), "{}: {}", record.agent, record.message);
  };
}

rpc::LogSink spdlog_sink() { return spdlog_sink(spdlog::default_logger()); }

}  // namespace weft::observe

// spdlog_sink(): a LogSink that writes an agent's log to spdlog.
//
//   rpc::Agent agent{{.name = "market", .log = observe::spdlog_sink()}};
//
// The text of a record is "AGENT: MESSAGE", followed by its fields as KEY=VALUE (logfmt). A value with blanks
// or unprintable characters is in quotation marks. The levels are those of spdlog with the same names.
// Thread-safe if the logger is (spdlog's "_mt" sinks).
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/log.h>

#include <memory>

namespace spdlog {
class logger;
}

namespace weft::observe {

WEFT_EXPORT rpc::LogSink spdlog_sink(std::shared_ptr<spdlog::logger> logger);
WEFT_EXPORT rpc::LogSink spdlog_sink();  // spdlog's default logger at the time of the call

}  // namespace weft::observe

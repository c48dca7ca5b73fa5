// An agent's log as records of spdlog: `AgentOptions{.log = observe::spdlog_sink()}`.
//
// A record's text is "AGENT: MESSAGE", then its fields as KEY=VALUE, the value in quotation marks where it
// has blanks or what is not printed plainly (logfmt); levels keep their names. Thread-safe where the logger
// is (spdlog's "_mt" sinks).
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/log.h>

#include <memory>

namespace spdlog {
class logger;
}

namespace weft::observe {

WEFT_EXPORT rpc::LogSink spdlog_sink(std::shared_ptr<spdlog::logger> logger);
WEFT_EXPORT rpc::LogSink spdlog_sink();  // spdlog's default logger, as it is at this call

}  // namespace weft::observe

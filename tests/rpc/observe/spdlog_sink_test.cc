#include <weft/rpc/observe/spdlog_sink.h>

#include <weft/rpc/rpc.h>

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <sstream>

namespace weft::observe::spdlog_sink_test {
namespace {

std::shared_ptr<spdlog::logger> logger_to(std::ostringstream& text, const std::string& pattern) {
  auto logger =
      std::make_shared<spdlog::logger>("weft", std::make_shared<spdlog::sinks::ostream_sink_mt>(text));
  logger->set_pattern(pattern);
  return logger;
}

TEST(SpdlogSink, RecordsKeepTheirLevelAndNameTheirAgent) {
  std::ostringstream text;
  const auto logger = logger_to(text, "%l %v");
  logger->set_level(spdlog::level::debug);
  const rpc::LogSink sink = spdlog_sink(logger);
  sink({rpc::LogLevel::debug, "a", "one"});
  sink({rpc::LogLevel::info, "a", "two"});
  sink({rpc::LogLevel::warning, "b", "three {}"});
  sink({rpc::LogLevel::error, "b", "four"});
  EXPECT_EQ(text.str(), "debug a: one\ninfo a: two\nwarning b: three {}\nerror b: four\n");
}

TEST(SpdlogSink, FieldsFollowTheMessage) {
  std::ostringstream text;
  const auto logger = logger_to(text, "%v");
  const rpc::LogSink sink = spdlog_sink(logger);
  const rpc::LogField fields[] = {{rpc::log_fields::peer, "anna"},
                                  {rpc::log_fields::method, "market.last"},
                                  {"text", "two words"},
                                  {"odd", "a\"b\\c\nd=\x1b[1m"},
                                  {"empty", ""},
                                  {"name", "J\xc3\xbcrgen"}};
  sink({rpc::LogLevel::warning, "b", "no {} here", fields});
  EXPECT_EQ(text.str(),
            "b: no {} here peer=anna method=market.last text=\"two words\" "
            "odd=\"a\\\"b\\\\c\\x0ad=\\x1b[1m\" empty=\"\" name=\"J\xc3\xbcrgen\"\n");
}

// C1 controls and changes of the direction of writing, which terminals and editors obey, and bytes that are
// no UTF-8.
TEST(SpdlogSink, ControlsInFieldsAreEscaped) {
  std::ostringstream text;
  const auto logger = logger_to(text, "%v");
  const rpc::LogField fields[] = {{"c1",
                                   "a\xc2\x9b"
                                   "31m"},
                                  {"bidi",
                                   "a\xe2\x80\xae"
                                   "b"},
                                  {"bytes",
                                   "a\xff"
                                   "b"}};
  spdlog_sink(logger)({rpc::LogLevel::warning, "b", "odd", fields});
  EXPECT_EQ(text.str(), "b: odd c1=\"a\\xc2\\x9b31m\" bidi=\"a\\xe2\\x80\\xaeb\" bytes=\"a\\xffb\"\n");
}

TEST(SpdlogSink, AnAgentLogsToSpdlog) {
  std::ostringstream text;
  const auto logger = logger_to(text, "%l %v");
  rpc::Agent agent{{.name = "quiet", .log = spdlog_sink(logger)}};
  agent.core()->log().write(rpc::LogLevel::warning, "something is odd");
  agent.core()->log().write(rpc::LogLevel::error, "it fails",
                            {{rpc::log_fields::peer, ""}, {"kind", "aborted"}});
  EXPECT_EQ(text.str(),
            "warning quiet: something is odd\n"
            "error quiet: it fails kind=aborted\n");
}

}  // namespace
}  // namespace weft::observe::spdlog_sink_test

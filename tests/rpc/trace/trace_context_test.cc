#include <weft/rpc/trace/trace_context.h>

#include <gtest/gtest.h>

#include <vector>

namespace weft::rpc::trace_context_test {
namespace {

const std::string example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

TEST(TraceContext, RoundTripsInTheFormatOfTheStandard) {
  const auto context = TraceContext::parse(example, "vendor=1");
  ASSERT_TRUE(context);
  EXPECT_EQ(context->trace_high, 0x4bf92f3577b34da6U);
  EXPECT_EQ(context->trace_low, 0xa3ce929d0e0e4736U);
  EXPECT_EQ(context->span, 0x00f067aa0ba902b7U);
  EXPECT_TRUE(context->sampled);
  EXPECT_EQ(context->state, "vendor=1");
  EXPECT_EQ(context->traceparent(), example);
  EXPECT_EQ(context->trace_text(), "4bf92f3577b34da6a3ce929d0e0e4736");
}

TEST(TraceContext, KeepsOnlyTheSampledFlag) {
  EXPECT_FALSE(TraceContext::parse(example.substr(0, 53) + "00")->sampled);
  EXPECT_FALSE(TraceContext::parse(example.substr(0, 53) + "fe")->sampled);
  EXPECT_TRUE(TraceContext::parse(example.substr(0, 53) + "03")->sampled);
  EXPECT_EQ(TraceContext::parse(example.substr(0, 53) + "03")->traceparent(), example);
}

TEST(TraceContext, LaterVersionsMayHaveMoreFields) {
  EXPECT_TRUE(TraceContext::parse("cc" + example.substr(2)));
  EXPECT_TRUE(TraceContext::parse("cc" + example.substr(2) + "-what-comes"));
  EXPECT_FALSE(TraceContext::parse("cc" + example.substr(2) + "x"));
}

TEST(TraceContext, MalformedTexts) {
  for (const auto& text : std::vector<std::string>{
           std::string(), std::string("00"), example.substr(0, 54), example + "0", example + "-00",
           "ff" + example.substr(2), "0X" + example.substr(2), "00_" + example.substr(3),
           "00-" + std::string(32, '0') + "-00f067aa0ba902b7-01",
           "00-4bf92f3577b34da6a3ce929d0e0e4736-" + std::string(16, '0') + "-01",
           "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01", example.substr(0, 53) + "0g",
           "00-4bf92f3577b34da6a3ce929d0e0e473 -00f067aa0ba902b7-01"})
    EXPECT_FALSE(TraceContext::parse(text)) << text;
}

TEST(TraceContext, ATooLongStateIsDropped) {
  EXPECT_EQ(TraceContext::parse(example, std::string(513, 'x'))->state, "");
  EXPECT_EQ(TraceContext::parse(example, std::string(512, 'x'))->state.size(), 512U);
}

}  // namespace
}  // namespace weft::rpc::trace_context_test

#include "tools/weft/top_text.h"

#include <gtest/gtest.h>

#include <limits>

namespace weft::tool::top_text_test {
namespace {

constexpr std::size_t wide = std::numeric_limits<std::size_t>::max();

rpc::AgentStats earlier() {
  rpc::AgentStats stats;
  stats.name = "bert";
  stats.uptime = 100;
  stats.calls_served = 1000;
  stats.calls_made = 10;
  stats.bytes_received = 0;
  stats.methods = {{"market.last", 500, 500, 0}, {"market.slow", 20, 20, 20}, {"never", 0, 0, 0}};
  return stats;
}

rpc::AgentStats later() {
  rpc::AgentStats stats = earlier();
  stats.uptime = 102;
  stats.connections = 3;
  stats.connections_made = 5;
  stats.calls_served = 1500;
  stats.calls_made = 15;
  stats.serving = 4;
  stats.waiting = 2;
  stats.calls_shed = 7;
  stats.bytes_received = 3 << 20;
  stats.bytes_sent = 2048;
  stats.pool_hits = 3;
  stats.pool_misses = 1;
  stats.pool_bytes = 1 << 20;
  stats.methods[0] = {"market.last", 900, 900, 0};
  stats.methods[1] = {"market.slow", 24, 21, 21};
  return stats;
}

TEST(TopText, RatesUseTheClockOfTheAgent) {
  EXPECT_EQ(top_text(earlier(), later(), wide, 0),
            "bert  up 102 s  3 connections, 5 made, 0 refused\n"
            "served        250.0/s       4 in flight  0 denied, 7 shed\n"
            "made            2.5/s       2 in flight\n"
            "bytes    1.5 MiB/s in, 1.0 KiB/s out; pool: 75 % hits, 1.0 MiB kept\n"
            "\n"
            "   CALLS/s  FAILED/s IN FLIGHT        CALLS  METHOD\n"
            "     200.0       0.0         0          900  market.last\n"
            "       2.0       0.5         3           24  market.slow\n");
}

TEST(TopText, ShowsNonZeroNumbersOfLayers) {
  rpc::AgentStats now = later();
  now.layers = {{"rref.forks", 0}, {"rref.objects", 2}, {"x\x1b", 1}};
  const std::string text = top_text(earlier(), now, wide, 0);
  EXPECT_NE(text.find("1.0 MiB kept\nlayers   rref.objects 2, x"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(TopText, ShowsTheGaugesOfTheProgram) {
  rpc::AgentStats now = later();
  now.gauges = {{"loss", 0.3125}, {"rate\x1b", 1e-5}};
  const std::string text = top_text(earlier(), now, wide, 0);
  EXPECT_NE(text.find("1.0 MiB kept\ngauges   loss 0.3125, rate"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
}

TEST(TopText, FitsTheTerminal) {
  rpc::AgentStats now = later();
  for (int i = 0; i < 30; ++i) now.methods.push_back({"m" + std::to_string(i), 1, 1, 0});
  const std::string text = top_text(earlier(), now, 30, 12);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 11);  // the last line is reserved for the cursor
  EXPECT_NE(text.find("28 more\n"), std::string::npos);
  std::size_t begin = 0;
  for (std::size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    EXPECT_LE(end - begin, 30U);
}

TEST(TopText, StringsOfAPeerDoNotControlTheTerminal) {
  rpc::AgentStats now = later();
  now.name = "\x1b[2J";
  now.methods[0].name = "m\x07";
  const std::string text = top_text(earlier(), now, wide, 0);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\x07'), std::string::npos);
}

TEST(TopText, DecreasingCountersShowARateOfZero) {
  rpc::AgentStats now = later();
  now.uptime = -1;
  now.calls_served = 0;
  now.methods[0] = {"m", 1, 5, 9};
  const std::string text = top_text(later(), now, wide, 0);
  EXPECT_NE(text.find("served          0.0/s"), std::string::npos) << text;
  EXPECT_NE(text.find("       0.0       0.0         0            1  m\n"), std::string::npos) << text;
}

}  // namespace
}  // namespace weft::tool::top_text_test

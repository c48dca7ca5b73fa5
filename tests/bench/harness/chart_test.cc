#include "bench/harness/chart.h"

#include <gtest/gtest.h>

#include <regex>

namespace weft::bench::chart_test {
namespace {

Entry entry(const std::string& name, const std::string& peer, Figures figures, double ratio = 0) {
  Entry made{name, peer, std::move(figures), {}, 7, 7, {}};
  if (ratio != 0)
    for (const auto& [figure, value] : made.medians) made.ratios[figure] = {ratio, ratio};
  return made;
}

std::vector<double> dots(const std::string& svg) {  // their places from left to right, in order of appearance
  std::vector<double> found;
  const std::regex circle("<circle cx=\"([0-9.]+)\"");
  for (std::sregex_iterator i(svg.begin(), svg.end(), circle), end; i != end; ++i)
    found.push_back(std::stod((*i)[1]));
  return found;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Chart, EqualRatiosAreEqualDistances) {
  const auto svg = chart({entry("tiny", "weft", {{"p50_us", 20}}), entry("tiny", "raw", {{"p50_us", 2}}, 10),
                          entry("tiny", "grpc", {{"p50_us", 200}}, 0.1)},
                         "weft", "bench rpc");
  const auto places = dots(svg);
  ASSERT_EQ(places.size(), 3U);
  EXPECT_LT(places[1], places[0]);
  EXPECT_NEAR(places[0] - places[1], places[2] - places[0], 0.2);
}

TEST(Chart, MarksTheFasterPeer) {
  const auto times =
      chart({entry("a", "weft", {{"p50_us", 20}}), entry("a", "raw", {{"p50_us", 10}}, 2)}, "weft", "");
  EXPECT_EQ(count(times, "class=\"behind\""), 1U);
  EXPECT_EQ(count(times, "class=\"ahead\""), 0U);
  const auto rates =
      chart({entry("a", "weft", {{"GBps", 20}}), entry("a", "raw", {{"GBps", 10}}, 2)}, "weft", "");
  EXPECT_EQ(count(rates, "class=\"ahead\""), 1U);
  EXPECT_NE(rates.find(">2.00</text>"), std::string::npos);  // the ratio
}

TEST(Chart, EveryCaseHasItsOwnScaleAndTheSubjectsFigure) {
  // raw also has p50_us, but rates are what weft is measured by.
  const auto svg =
      chart({entry("a", "raw", {{"GBps", 2}, {"p50_us", 1}}, 0.5), entry("a", "weft", {{"GBps", 1}}),
             entry("b", "raw", {{"p50_us", 2000}}, 0.5), entry("b", "weft", {{"p50_us", 1000}})},
            "weft", "");
  const auto places = dots(svg);
  ASSERT_EQ(places.size(), 4U);
  EXPECT_GT(places[0], places[1]);
  EXPECT_EQ(places[0], places[2]);
  EXPECT_EQ(places[1], places[3]);
}

TEST(Chart, NamesPeersThatFailedAndIsWellFormed) {
  Entry failed = entry("tiny", "grpc", {});
  failed.error = "no <port> & \"no\" socket";
  const auto svg =
      chart({entry("tiny", "weft", {{"p50_us", 1}}), failed, entry("none", "weft", {})}, "weft", "a & b");
  EXPECT_NE(svg.find("failed: no &lt;port&gt; &amp; &quot;no&quot; socket"), std::string::npos);
  EXPECT_NE(svg.find("a &amp; b"), std::string::npos);
  EXPECT_EQ(dots(svg).size(), 1U);
  EXPECT_EQ(count(svg, "nan"), 0U);
  EXPECT_EQ(count(svg, "inf"), 0U);
  EXPECT_EQ(count(svg, "<text "), count(svg, "</text>"));
}

TEST(Chart, IsReadableOnDarkPages) {
  const auto svg = chart({}, "weft", "");
  EXPECT_NE(svg.find("prefers-color-scheme: dark"), std::string::npos);
  EXPECT_NE(svg.find("class=\"page\""), std::string::npos);  // its own background
}

TEST(Chart, TicksEncloseTheValues) {
  EXPECT_EQ(log_ticks(3, 40), (std::vector<double>{2, 5, 10, 20, 50}));
  EXPECT_EQ(log_ticks(2, 5), (std::vector<double>{2, 5}));
  EXPECT_EQ(log_ticks(1, 1), (std::vector<double>{0.5, 1, 2}));
  EXPECT_EQ(log_ticks(0.3, 20000), (std::vector<double>{0.1, 1, 10, 100, 1000, 10000, 100000}));
}

}  // namespace
}  // namespace weft::bench::chart_test

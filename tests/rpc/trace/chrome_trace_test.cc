#include <weft/rpc/trace/chrome_trace.h>

#include <weft/rpc/trace/tracer.h>

#include <cstdlib>

#include "tests/support/cluster.h"

namespace weft::rpc::chrome_trace_test {
namespace {

using test::got;

Span span(std::uint64_t id, std::uint64_t parent, bool served, std::int64_t begin, std::int64_t end) {
  Span span;
  span.trace_high = 1;
  span.trace_low = 2;
  span.id = id;
  span.parent = parent;
  span.name = "f";
  span.served = served;
  span.begin = begin;
  span.end = end;
  return span;
}

TEST(ChromeTrace, ClocksAreAlignedAndCallsHaveArrows) {
  AgentSpans a{"a", 1, {}, 0, {span(16, 0, false, 5'000'000, 5'900'000)}};
  // The clock of b is one second ahead.
  AgentSpans b{"b\"", 2, {1'000'000'000, 10}, 0, {span(32, 16, true, 1'005'200'001, 1'005'700'001)}};
  b.spans[0].peer = "a";
  b.spans[0].error = "not_found";
  EXPECT_EQ(chrome_trace({a, b}),
            R"({"displayTimeUnit":"ns","traceEvents":[
{"ph":"M","name":"process_name","pid":1,"tid":0,"args":{"name":"a"}},
{"ph":"M","name":"thread_name","pid":1,"tid":1,"args":{"name":"made"}},
{"ph":"X","name":"f","cat":"made","pid":1,"tid":1,"ts":0.000,"dur":900.000,"args":{"trace":"00000000000000010000000000000002","span":"0000000000000010"}},
{"ph":"s","name":"call","cat":"call","id":"0000000000000010","pid":1,"tid":1,"ts":0.000},
{"ph":"M","name":"process_name","pid":2,"tid":0,"args":{"name":"b\""}},
{"ph":"M","name":"thread_name","pid":2,"tid":100001,"args":{"name":"served"}},
{"ph":"X","name":"f","cat":"served","pid":2,"tid":100001,"ts":200.001,"dur":500.000,"args":{"trace":"00000000000000010000000000000002","span":"0000000000000020","parent":"0000000000000010","peer":"a","error":"not_found"}},
{"ph":"f","bp":"e","name":"call","cat":"call","id":"0000000000000010","pid":2,"tid":100001,"ts":200.001}
]}
)");
}

TEST(ChromeTrace, OfNoAgentsIsEmpty) {
  EXPECT_EQ(chrome_trace({}), "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n\n]}\n");
}

TEST(ChromeTrace, TextsAreEscaped) {
  AgentSpans a{"\x1b\xff\\\n", 1, {}, 0, {}};
  EXPECT_NE(chrome_trace({a}).find(R"("name":"\u001b\u00ff\\\u000a")"), std::string::npos);
}

TEST(ChromeTrace, SpansOfOneLaneDoNotOverlapAndThereAreNoMoreLanesThanNeeded) {
  const std::vector<Span> spans{span(1, 0, true, 0, 10), span(2, 0, true, 10, 20), span(3, 0, true, 5, 15),
                                span(4, 0, true, 16, 18), span(5, 0, true, 16, 16)};
  EXPECT_EQ(lanes_of(spans), (std::vector<std::size_t>{0, 0, 1, 1, 2}));
  EXPECT_TRUE(lanes_of({}).empty());
}

Span work(std::uint64_t id, std::uint64_t parent, std::int64_t begin, std::int64_t end) {
  Span work = span(id, parent, false, begin, end);
  work.work = true;
  return work;
}

TEST(ChromeTrace, WorkIsInTheLaneOfItsParentIfItFits) {
  const std::vector<Span> spans{
      work(11, 10, 12, 14),                           // in the operator that runs it, noted before it
      work(10, 1, 12, 18),      work(12, 1, 18, 19),  // one after the other
      span(1, 0, true, 10, 20),                       // a call
      span(2, 0, true, 11, 30), work(20, 2, 11, 30),  // another, and work as long as it
      work(13, 1, 15, 19),   // parallel to other work of the call: in a separate lane
      work(14, 1, 19, 25),   // longer than its call
      work(30, 99, 40, 50),  // its parent is elsewhere
  };
  EXPECT_EQ(nested_lanes_of(spans), (std::vector<std::size_t>{0, 0, 0, 0, 1, 1, 2, 2, 0}));
}

TEST(ChromeTrace, WorkIsDrawnWithItsNotesAndWithoutAnArrow) {
  AgentSpans a{"a", 1, {}, 0, {span(32, 16, true, 5'000, 9'000), work(48, 32, 6'000, 8'000)}};
  a.spans[1].notes = {{"shapes", "[[2]]"}};
  // The caller's span of the same call, so that the trace contains an arrow to it.
  const std::string json = chrome_trace({a, {"b", 2, {}, 0, {span(16, 0, false, 4'000, 9'900)}}});
  EXPECT_NE(
      json.find(R"({"ph":"X","name":"f","cat":"work","pid":1,"tid":100001,"ts":2.000,"dur":2.000,"args":{)"
                R"("trace":"00000000000000010000000000000002","span":"0000000000000030",)"
                R"("parent":"0000000000000020","shapes":"[[2]]"}})"),
      std::string::npos)
      << json;
  EXPECT_EQ(json.find(R"("id":"0000000000000030")"), std::string::npos) << json;
}

struct Worker {
  int twice(int x) { return 2 * x; }
  using Service = rpc::Service<"worker", Method<"twice", &Worker::twice>>;
};

TEST(ChromeTrace, CollectsFromAgents) {
  auto a = std::make_shared<Tracer>(), b = std::make_shared<Tracer>();
  test::Cluster cluster{{}, {"asker"}};
  cluster.add("a", {a->layer()});
  cluster.add("b", {b->layer()}).serve(std::make_shared<Worker>());
  for (int i = 0; i < 3; ++i) got(cluster.peer("a", "b").call<&Worker::twice>(1));
  const AgentSpans first = collect_spans(cluster.peer("asker", "a")),
                   second = collect_spans(cluster.peer("asker", "b"));
  EXPECT_EQ(first.agent, "a");
  EXPECT_EQ(first.spans.size(), 3U);
  EXPECT_EQ(second.spans.size(), 3U);
  EXPECT_EQ(second.incarnation, cluster["b"].id().incarnation);
  const std::string json = chrome_trace({first, second});
  std::size_t arrows = 0;
  for (std::size_t at = 0; (at = json.find("\"ph\":\"f\"", at)) != std::string::npos; ++at) ++arrows;
  EXPECT_EQ(arrows, 3U);
  EXPECT_TRUE(collect_spans(cluster.peer("asker", "a")).spans.empty());
}

// An agent whose spans never end.
struct Endless {
  std::atomic<int> asked = 0;
  std::int64_t clock() { return 0; }
  SpanBatch spans() {
    ++asked;
    return {.agent = "endless", .left = 1, .spans = {span(16, 0, false, 1, 2)}};
  }
  using Service = rpc::Service<"weft", Method<"clock", &Endless::clock>, Method<"spans", &Endless::spans>>;
};

TEST(ChromeTrace, AnAgentWhoseSpansNeverEndIsAskedALimitedNumberOfTimes) {
  const auto endless = std::make_shared<Endless>();
  test::Cluster cluster{{}, {"asker"}};
  cluster.add("endless", {}).serve(endless);
  EXPECT_EQ(collect_spans(cluster.peer("asker", "endless")).spans.size(), 100U);
  EXPECT_EQ(endless->asked, 100);
}

TEST(ClockOffset, IsTakenAtTheMidpointOfTheShortestRoundTrip) {
  const ClockOffset offset = clock_offset({{0, 5000, 1000}, {2000, 1'002'060, 2100}, {5000, 7, 9000}});
  EXPECT_EQ(offset.ahead, 1'000'010);
  EXPECT_EQ(offset.uncertain, 50);
}

TEST(ClockOffset, MayBeNegative) {
  EXPECT_EQ(clock_offset({{1000, 0, 1010}}).ahead, -1005);
  EXPECT_EQ(test::kind_of([] { clock_offset({}); }), ErrorKind::invalid_argument);
}

TEST(ClockOffset, IsWithinTheStatedUncertainty) {
  std::uint64_t state = 1;
  const auto draw = [&](std::int64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int64_t>(state >> 33) % below;
  };
  for (int i = 0; i < 1000; ++i) {
    const std::int64_t truth = draw(2'000'000'000) - 1'000'000'000;
    std::vector<ClockSample> samples;
    for (int k = 0; k < 5; ++k) {
      const std::int64_t sent = draw(1'000'000), there = draw(50'000), back = draw(50'000);
      samples.push_back({sent, sent + there + truth, sent + there + back});
    }
    const ClockOffset offset = clock_offset(samples);
    EXPECT_LE(std::llabs(offset.ahead - truth), offset.uncertain + 1);
  }
}

TEST(ClockOffset, OfAnAgentOnTheSameHostIsZero) {
  auto tracer = std::make_shared<Tracer>();
  test::Cluster cluster{{}, {"a"}};
  cluster.add("b", {tracer->layer()});
  const ClockOffset offset = measure_clock(cluster.peer("a", "b"), 4);
  EXPECT_LE(std::llabs(offset.ahead), offset.uncertain + 1);
  EXPECT_EQ(test::kind_of([&] { measure_clock(cluster.peer("b", "a")); }), ErrorKind::not_found);
}

}  // namespace
}  // namespace weft::rpc::chrome_trace_test

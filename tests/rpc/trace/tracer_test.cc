#include <weft/rpc/trace/tracer.h>

#include <weft/rpc/trace/chrome_trace.h>

#include <algorithm>

#include "tests/support/cluster.h"

namespace weft::rpc::tracer_test {
namespace {

using namespace test;

const TraceContext outside =
    *TraceContext::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "a=b");

struct Worker {
  int twice(CallContext& call, int x) {
    seen = trace_of(call);
    return 2 * x;
  }
  Future<int> onward(CallContext& call, int x) {
    seen = trace_of(call);
    return other->with(call).call<&Worker::twice>(x);
  }
  void fail() { throw Error(ErrorKind::failed_precondition, "no"); }
  using Service = rpc::Service<"worker", Method<"twice", &Worker::twice>, Method<"onward", &Worker::onward>,
                               Method<"fail", &Worker::fail>>;
  std::optional<Peer> other;
  std::optional<TraceContext> seen;  // read after the reply
};

class TracerTest : public testing::Test {
 protected:
  TracerTest() {
    for (const auto& [name, tracer] : tracers) cluster.add(name, {tracer->layer()});
    cluster.add("untraced");
    for (const std::string name : {"b", "c", "untraced"}) {
      workers[name] = std::make_shared<Worker>();
      cluster[name].serve(workers[name]);
    }
    workers["b"]->other = cluster.peer("b", "c");
    workers["untraced"]->other = cluster.peer("untraced", "c");
  }
  std::vector<Span> spans(const std::string& agent) { return tracers.at(agent)->take().spans; }

  std::map<std::string, std::shared_ptr<Tracer>> tracers{{"a", std::make_shared<Tracer>()},
                                                         {"b", std::make_shared<Tracer>()},
                                                         {"c", std::make_shared<Tracer>()}};
  std::map<std::string, std::shared_ptr<Worker>> workers;
  Cluster cluster{{}};
};

TEST_F(TracerTest, ACallAndItsNestedCallsAreOneTrace) {
  EXPECT_EQ(got(cluster.peer("a", "b").call<&Worker::onward>(4)), 8);
  const auto a = spans("a"), b = spans("b"), c = spans("c");
  ASSERT_EQ(a.size(), 1U);
  ASSERT_EQ(b.size(), 2U);
  ASSERT_EQ(c.size(), 1U);
  const Span &made = a[0], &onward = b[0], &served = b[1], &last = c[0];
  EXPECT_EQ(made.name, "worker.onward");
  EXPECT_FALSE(made.served);
  EXPECT_EQ(made.parent, 0U);
  EXPECT_EQ(made.peer, "b");
  EXPECT_EQ(served.name, "worker.onward");
  EXPECT_TRUE(served.served);
  EXPECT_EQ(served.parent, made.id);
  EXPECT_EQ(served.peer, "a");
  EXPECT_EQ(onward.name, "worker.twice");
  EXPECT_FALSE(onward.served);
  EXPECT_EQ(onward.parent, served.id);
  EXPECT_EQ(last.parent, onward.id);
  EXPECT_TRUE(last.served);
  for (const Span* span : {&made, &onward, &served, &last}) {
    EXPECT_EQ(span->trace_high, made.trace_high);
    EXPECT_EQ(span->trace_low, made.trace_low);
    EXPECT_LE(span->begin, span->end);
    EXPECT_EQ(span->error, "");
  }
  EXPECT_LE(made.begin, served.begin);  // one machine has one clock
  EXPECT_LE(served.begin, onward.begin);
  EXPECT_LE(onward.end, made.end);
  EXPECT_EQ(workers["c"]->seen->span, last.id);
  EXPECT_EQ(workers["c"]->seen->trace_low, made.trace_low);
}

TEST_F(TracerTest, OtherCallsAreOtherTraces) {
  got(cluster.peer("a", "c").call<&Worker::twice>(1));
  got(cluster.peer("a", "c").call<&Worker::twice>(1));
  const auto a = spans("a");
  ASSERT_EQ(a.size(), 2U);
  EXPECT_NE(a[0].trace_low, a[1].trace_low);
  EXPECT_NE(a[0].id, a[1].id);
  EXPECT_TRUE(spans("a").empty());  // spans are returned once
}

TEST_F(TracerTest, Errors) {
  EXPECT_EQ(kind_of([&] { got(cluster.peer("a", "b").call<&Worker::fail>()); }),
            ErrorKind::failed_precondition);
  EXPECT_EQ(spans("a").at(0).error, "failed_precondition");
  EXPECT_EQ(spans("b").at(0).error, "failed_precondition");
}

TEST_F(TracerTest, ACallContinuesAGivenTrace) {
  got(cluster.peer("a", "c").call<&Worker::twice>(Under(outside), 1));
  const auto a = spans("a").at(0), c = spans("c").at(0);
  EXPECT_EQ(a.trace_high, outside.trace_high);
  EXPECT_EQ(a.parent, outside.span);
  EXPECT_EQ(c.trace_low, outside.trace_low);
  EXPECT_EQ(c.parent, a.id);
  EXPECT_EQ(workers["c"]->seen->state, "a=b");
}

TEST_F(TracerTest, AnAgentWithoutATracerPassesTheContextOn) {
  got(cluster.peer("untraced", "c").call<&Worker::twice>(Under(outside), 1));
  EXPECT_EQ(spans("c").at(0).parent, outside.span);
  // an agent without a tracer does not interrupt the trace
  got(cluster.peer("a", "untraced").call<&Worker::twice>(1));
  EXPECT_FALSE(workers["untraced"]->seen);
}

TEST_F(TracerTest, ACallWithoutATraceStartsOneAtItsCallee) {
  got(cluster.peer("untraced", "b").call<&Worker::onward>(1));
  EXPECT_EQ(spans("b").at(1).parent, 0U);
  EXPECT_NE(spans("c").at(0).parent, 0U);
}

TEST_F(TracerTest, UnsampledCallsAreRecordedNowhere) {
  TraceContext unsampled = outside;
  unsampled.sampled = false;
  got(cluster.peer("a", "b").call<&Worker::onward>(Under(unsampled), 1));
  EXPECT_TRUE(spans("a").empty());
  EXPECT_TRUE(spans("b").empty());
  EXPECT_TRUE(spans("c").empty());
  EXPECT_EQ(workers["c"]->seen->trace_low, outside.trace_low);
  EXPECT_FALSE(workers["c"]->seen->sampled);
}

TEST_F(TracerTest, TheRatioAppliesToTraces) {
  auto none = std::make_shared<Tracer>(TracerOptions{.ratio = 0});
  auto half = std::make_shared<Tracer>(TracerOptions{.ratio = 0.5});
  cluster.add("none", {none->layer()});
  cluster.add("half", {half->layer()});
  for (int i = 0; i < 200; ++i) {
    got(cluster.peer("none", "c").call<&Worker::twice>(1));
    got(cluster.peer("half", "c").call<&Worker::twice>(1));
  }
  const std::size_t noted = half->take().spans.size();
  EXPECT_TRUE(none->take().spans.empty());
  EXPECT_GT(noted, 40U);  // a fair coin misses this by 8 standard deviations
  EXPECT_LT(noted, 160U);
  EXPECT_EQ(spans("c").size(), noted);
}

TEST_F(TracerTest, DroppedSpansAreCounted) {
  auto small = std::make_shared<Tracer>(TracerOptions{.max_spans = 2});
  cluster.add("small", {small->layer()});
  for (int i = 0; i < 5; ++i) got(cluster.peer("small", "c").call<&Worker::twice>(1));
  const SpanBatch one = small->take(1), rest = small->take();
  EXPECT_EQ(one.dropped, 3U);
  EXPECT_EQ(one.spans.size(), 1U);
  EXPECT_EQ(one.left, 1U);
  EXPECT_EQ(rest.dropped, 0U);
  EXPECT_EQ(rest.spans.size(), 1U);
}

TEST_F(TracerTest, AMalformedTraceparentStartsANewTrace) {
  const Peer peer = cluster.peer("untraced", "c");
  OutgoingCall call = peer.calls().make("worker.twice", 1);
  call.set_metadata("traceparent", "00-nonsense");
  call.begin();
  call.message().argument(0).set_int(1);
  call.end();
  EXPECT_EQ(got(peer.calls().start_typed<int>(std::move(call),
                                              [](Result<PendingCall::Reply>&& reply) {
                                                return decode_reply<int>(std::move(reply), "worker.twice");
                                              })),
            2);
  EXPECT_EQ(spans("c").at(0).parent, 0U);
}

TEST_F(TracerTest, ACallThatMayBeRetriedIsOneSpan) {
  const Peer peer = cluster.peer("a", "b").with({.retry = RetryPolicy{}, .idempotent = true});
  EXPECT_EQ(got(peer.call<&Worker::onward>(4)), 8);
  ASSERT_EQ(spans("a").size(), 1U);
  EXPECT_EQ(spans("c").size(), 1U);
}

TEST_F(TracerTest, CannotBeUsedByTwoAgents) {
  EXPECT_EQ(kind_of([&] { cluster.add("d", {tracers.at("a")->layer()}); }), ErrorKind::failed_precondition);
}

TEST_F(TracerTest, RecordsOnlyTheRequestedMethodsOfWeft) {
  const auto tracer = std::make_shared<Tracer>(TracerOptions{.own_methods = {std::string(clock_method)}});
  cluster.add("d", {tracer->layer()});
  measure_clock(cluster.peer("a", "d"), 2);
  const auto found = tracer->take().spans;
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].name, clock_method);
  EXPECT_TRUE(found[0].served);
  EXPECT_FALSE(found[0].work);
  EXPECT_TRUE(spans("a").empty()) << "there nobody asked";
}

}  // namespace
}  // namespace weft::rpc::tracer_test

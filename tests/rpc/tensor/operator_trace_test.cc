// In a trace, the operators of a handler are under the call that runs them, and nowhere else.
#include <weft/rpc/tensor/operator_trace.h>

#include <weft/rpc/tensor/layers.h>
#include <weft/rpc/tensor/operators.h>
#include <weft/rpc/trace/chrome_trace.h>

#include <torch/csrc/autograd/profiler_kineto.h>
#include <torch/torch.h>

#include <barrier>

#include "tests/support/cluster.h"

namespace weft::tensor::operator_trace_test {
namespace {

using rpc::Span;
using namespace test;

struct Worker {
  at::Tensor multiply(at::Tensor x, at::Tensor y) { return x.mm(y); }
  at::Tensor linear(at::Tensor x, at::Tensor w) { return at::linear(x, w); }
  at::Tensor allocate(std::int64_t elements) { return at::empty({elements}, at::kFloat).sum(); }
  at::Tensor stack(at::Tensor x) { return at::stack({x, x}); }
  // Adds n times, while another call does the same concurrently.
  std::int64_t add(std::int64_t n) {
    at::Tensor sum = at::zeros({});
    for (std::int64_t i = 0; i < 12; ++i) {
      together->arrive_and_wait();
      if (i < n) sum.add_(1);
    }
    return sum.item<std::int64_t>();
  }
  void meet() {}
  rpc::Task<at::Tensor> named(at::Tensor x) {
    at::Tensor y = x.neg();
    {
      RECORD_USER_SCOPE("attention");
      y = y.exp();
      co_await next->call<&Worker::meet>();
      y = y.sin();
    }
    co_return y.cos();
  }
  at::Tensor gradient(at::Tensor x) {
    at::AutoGradMode on(true);
    x = x.detach().requires_grad_();
    (x * x).sum().backward();
    return x.grad();
  }
  void profile() {
    namespace profiler = torch::autograd::profiler;
    profiler::enableProfiler(profiler::ProfilerConfig(profiler::ProfilerState::KINETO),
                             {torch::profiler::impl::ActivityType::CPU}, {});
  }
  using Service =
      rpc::Service<"worker", rpc::Method<"multiply", &Worker::multiply>,
                   rpc::Method<"linear", &Worker::linear>, rpc::Method<"allocate", &Worker::allocate>,
                   rpc::Method<"stack", &Worker::stack>, rpc::Method<"add", &Worker::add>,
                   rpc::Method<"meet", &Worker::meet>, rpc::Method<"named", &Worker::named>,
                   rpc::Method<"gradient", &Worker::gradient>, rpc::Method<"profile", &Worker::profile>>;
  std::optional<rpc::Peer> next;
  std::shared_ptr<std::barrier<>> together = std::make_shared<std::barrier<>>(2);
};

class OperatorTraceTest : public ::testing::Test {
 protected:
  OperatorTraceTest() : cluster({}, {"here", "next"}) {}

  // Starts an agent whose handlers run the operators, and returns the peer "here" has of it.
  rpc::Peer serve(OperatorTraceOptions options, rpc::TracerOptions tracing = {},
                  const std::string& name = "there") {
    tracers[name] = std::make_shared<rpc::Tracer>(tracing);
    rpc::Layers all = layers();
    all.push_back(tracers[name]->layer());
    all.push_back(trace_operators(options));
    rpc::Agent& agent = cluster.add(name, std::move(all));
    auto worker = std::make_shared<Worker>();
    agent.serve(worker);
    if (name == "there") {
      cluster["next"].serve(std::make_shared<Worker>());
      worker->next = cluster.peer("there", "next");
    }
    return cluster.peer("here", name);
  }
  std::vector<Span> spans(const std::string& name = "there") { return tracers.at(name)->take().spans; }

  test::Cluster cluster;
  std::map<std::string, std::shared_ptr<rpc::Tracer>> tracers;
};

std::vector<Span> named(const std::vector<Span>& spans, const std::string& name) {
  std::vector<Span> all;
  std::copy_if(spans.begin(), spans.end(), std::back_inserter(all),
               [&](const Span& span) { return span.name == name; });
  return all;
}

Span one(const std::vector<Span>& spans, const std::string& name) {
  const auto all = named(spans, name);
  EXPECT_EQ(all.size(), 1U) << name;
  return all.empty() ? Span{} : all.front();
}

std::size_t works(const std::vector<Span>& spans) {
  return static_cast<std::size_t>(
      std::count_if(spans.begin(), spans.end(), [](const Span& span) { return span.work; }));
}

void expect_within(const Span& inner, const Span& outer) {
  EXPECT_EQ(inner.parent, outer.id) << inner.name << " in " << outer.name;
  EXPECT_EQ(inner.trace_low, outer.trace_low);
  EXPECT_TRUE(inner.work) << inner.name;
  EXPECT_GE(inner.begin, outer.begin) << inner.name;
  EXPECT_LE(inner.end, outer.end) << inner.name;
}

TEST_F(OperatorTraceTest, AreChildrenOfTheirCallAndOfCallingOperators) {
  const rpc::Peer there = serve({});
  got(there.call<&Worker::linear>(at::ones({2, 3}), at::ones({4, 3})));
  const auto all = spans();
  const Span call = one(all, "worker.linear"), linear = one(all, "aten::linear"),
             matmul = one(all, "aten::matmul"), mm = one(all, "aten::mm");
  expect_within(linear, call);
  expect_within(matmul, linear);
  expect_within(mm, matmul);
  EXPECT_TRUE(mm.notes.empty()) << "not asked for";
  EXPECT_FALSE(call.work);
}

TEST_F(OperatorTraceTest, RecordTheShapesOfTheirInputs) {
  const rpc::Peer there = serve({.details = {.shapes = true}});
  got(there.call<&Worker::multiply>(at::ones({2, 3}), at::ones({3, 4})));
  auto all = spans();
  EXPECT_EQ(one(all, "aten::mm").notes.at("shapes"), "[[2, 3], [3, 4]]");
  EXPECT_FALSE(one(all, "aten::mm").notes.contains("bytes.cpu"));
  got(there.call<&Worker::stack>(at::ones({5})));
  EXPECT_EQ(one(spans(), "aten::stack").notes.at("shapes"), "[[[5], [5]], []]");
}

TEST_F(OperatorTraceTest, RecordTheMemoryThatTheyAllocated) {
  const rpc::Peer there = serve({.details = {.memory = true}});
  got(there.call<&Worker::linear>(at::ones({2, 3}), at::ones({1024, 3})));
  const auto all = spans();
  const std::int64_t bytes = 2 * 1024 * 4;
  EXPECT_EQ(std::stoll(one(all, "aten::mm").notes.at("bytes.cpu")), bytes);
  EXPECT_EQ(std::stoll(one(all, "aten::linear").notes.at("bytes.cpu")), bytes) << "with what it called";
  EXPECT_FALSE(one(all, "aten::mm").notes.contains("shapes"));
}

TEST_F(OperatorTraceTest, OfConcurrentCallsAreChildrenOfTheirOwnCall) {
  const rpc::Peer there = serve({});
  auto five = there.call<&Worker::add>(5), nine = there.call<&Worker::add>(9);
  EXPECT_EQ(got(std::move(five)), 5);
  EXPECT_EQ(got(std::move(nine)), 9);
  const auto all = spans();
  std::map<std::uint64_t, std::size_t> additions;
  for (const Span& span : named(all, "aten::add_")) ++additions[span.parent];
  std::multiset<std::size_t> counts;
  for (const Span& call : named(all, "worker.add")) counts.insert(additions[call.id]);
  EXPECT_EQ(counts, (std::multiset<std::size_t>{5, 9}));
}

TEST_F(OperatorTraceTest, AreChildrenOfANamedBlockAcrossASuspension) {
  const rpc::Peer there = serve({});
  got(there.call<&Worker::named>(at::ones({2})));
  const auto all = spans();
  const Span call = one(all, "worker.named"), block = one(all, "attention");
  expect_within(one(all, "aten::neg"), call);
  expect_within(block, call);
  expect_within(one(all, "aten::exp"), block);
  expect_within(one(all, "aten::sin"), block);
  expect_within(one(all, "aten::cos"), call);
}

TEST_F(OperatorTraceTest, OfABackwardInAHandlerAreRecorded) {
  const rpc::Peer there = serve({});
  got(there.call<&Worker::gradient>(at::ones({2})));
  const auto all = spans();
  const Span call = one(all, "worker.gradient");
  const Span node = one(all, "MulBackward0");
  EXPECT_TRUE(node.work);
  EXPECT_EQ(node.trace_low, call.trace_low);
  for (const Span& product : named(all, "aten::mul"))
    EXPECT_TRUE(product.parent == node.id || product.parent == call.id);
}

TEST_F(OperatorTraceTest, CalledByNameAreRecorded) {
  const rpc::Peer there = serve({});
  allow_operators(cluster["there"], {"aten::mm"});
  got(call_operator(there, "aten::mm", at::ones({2, 3}), at::ones({3, 4})));
  const auto all = named(spans(), "aten::mm");
  ASSERT_EQ(all.size(), 2U) << "the call, and the operator in it";
  const bool first = all[0].work;
  expect_within(all[first ? 0 : 1], all[first ? 1 : 0]);
}

TEST_F(OperatorTraceTest, AreNotRecordedInUnsampledTraces) {
  const rpc::Peer there = serve({}, {.ratio = 0});
  got(there.call<&Worker::multiply>(at::ones({2, 3}), at::ones({3, 4})));
  EXPECT_TRUE(spans().empty());
}

TEST_F(OperatorTraceTest, OfTwoAgentsAreInTheirOwnTraces) {
  const rpc::Peer there = serve({}), other = serve({}, {}, "other");
  got(there.call<&Worker::multiply>(at::ones({2, 3}), at::ones({3, 4})));
  got(other.call<&Worker::stack>(at::ones({2})));
  const auto in_one = spans(), in_other = spans("other");
  EXPECT_EQ(named(in_one, "aten::mm").size(), 1U);
  EXPECT_TRUE(named(in_one, "aten::stack").empty());
  EXPECT_TRUE(named(in_other, "aten::mm").empty());
  EXPECT_EQ(named(in_other, "aten::stack").size(), 1U);
}

TEST_F(OperatorTraceTest, AreCollectedAndDrawnWithinTheirCall) {
  const rpc::Peer there = serve({.details = {.shapes = true}});
  got(there.call<&Worker::linear>(at::ones({2, 3}), at::ones({4, 3})));
  const rpc::AgentSpans collected = rpc::collect_spans(there);
  EXPECT_EQ(collected.agent, "there") << "the worker that ran them";
  const std::string json = rpc::chrome_trace({collected});
  for (const std::string event :
       {R"("name":"worker.linear","cat":"served","pid":1,"tid":100001)",
        R"("name":"aten::linear","cat":"work","pid":1,"tid":100001)",
        R"("name":"aten::mm","cat":"work","pid":1,"tid":100001)", R"("shapes":"[[2, 3], [3, 4]]")"})
    EXPECT_NE(json.find(event), std::string::npos) << event << " in " << json;
}

TEST_F(OperatorTraceTest, AreRecordedForAllCallersOnRequestOfAPeer) {
  const rpc::Peer there = serve({.always = false}), from_next = cluster.peer("next", "there");
  const auto run = [&](const rpc::Peer& from) {
    got(from.call<&Worker::multiply>(at::ones({2, 3}), at::ones({3, 4})));
  };
  const auto within = [](const OperatorRecording& recording, const std::vector<Span>& all) {
    return std::count_if(all.begin(), all.end(), [&](const Span& span) {
      return span.name == "aten::mm" && span.begin >= recording.begin && span.end <= recording.end;
    });
  };
  run(there);
  EXPECT_EQ(works(spans()), 0U) << "nobody asks for them";
  const OperatorRecording outer = got(start_operators(there));
  run(there);
  const OperatorRecording inner = got(start_operators(there));
  run(there);
  run(from_next);
  const OperatorRecording inner_whole = got(stop_operators(there, inner));
  run(there);
  const OperatorRecording outer_whole = got(stop_operators(there, outer));
  const auto all = rpc::collect_spans(there).spans;
  EXPECT_EQ(within(inner_whole, all), 2);
  EXPECT_EQ(within(outer_whole, all), 4);
  run(there);
  EXPECT_EQ(works(spans()), 0U) << "all have stopped";
}

TEST_F(OperatorTraceTest, ARecordingIsStoppedByThePeerThatStartedItOrEndsWithIt) {
  const rpc::Peer there = serve({.always = false});
  cluster.add("asker");
  const rpc::Peer asker = cluster.peer("asker", "there");
  const OperatorRecording recording = got(start_operators(asker));
  EXPECT_EQ(kind_of([&] { got(stop_operators(there, recording)); }), rpc::ErrorKind::not_found);
  cluster.end("asker");
  test::eventually("nobody records any more", [&] {
    got(there.call<&Worker::multiply>(at::ones({2, 3}), at::ones({3, 4})));
    return works(spans()) == 0;
  });
}

TEST_F(OperatorTraceTest, NeedATracer) {
  EXPECT_EQ(kind_of([&] { cluster.add("alone", {trace_operators()}); }), rpc::ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { got(start_operators(cluster.peer("here", "next"))); }), rpc::ErrorKind::not_found);
}

TEST_F(OperatorTraceTest, AProfilerOfLibTorchInAHandlerIsRefused) {
  const rpc::Peer there = serve({});
  EXPECT_EQ(kind_of([&] { got(there.call<&Worker::profile>()); }), rpc::ErrorKind::handler_failed);
  got(there.call<&Worker::multiply>(at::ones({2, 3}), at::ones({3, 4})));
  EXPECT_EQ(named(spans(), "aten::mm").size(), 1U);
}

TEST_F(OperatorTraceTest, TheStateOfTheThreadIsRestored) {
  serve({});
  const auto context = OperatorTrace::of(*cluster["there"].core())->context_under({1, 2, 3, true, {}});
  ASSERT_NE(context, nullptr);
  const at::Tensor x = at::ones({2});
  context->enter();
  x.neg();
  context->leave();
  EXPECT_FALSE(at::hasThreadLocalCallbacks());
  x.exp();
  std::thread([&] {
    x.exp();
    context->enter();
    x.sin();
    context->leave();
    EXPECT_FALSE(at::hasThreadLocalCallbacks());
    x.exp();
  }).join();
  const auto all = spans();
  EXPECT_EQ(one(all, "aten::neg").parent, 3U);
  EXPECT_EQ(one(all, "aten::sin").parent, 3U);
  EXPECT_TRUE(named(all, "aten::exp").empty());
}

TEST_F(OperatorTraceTest, ABlockSpansALaterSuspension) {
  serve({});
  const auto context = OperatorTrace::of(*cluster["there"].core())->context_under({1, 2, 3, true, {}});
  ASSERT_NE(context, nullptr);
  const at::Tensor x = at::ones({2});
  context->enter();
  context->leave();
  std::unique_ptr<at::RecordFunction> block;
  std::thread([&] {
    context->enter();
    block = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    block->before("attention");
    context->leave();
  }).join();
  context->enter();
  x.neg();
  block.reset();
  x.exp();
  context->leave();
  const auto all = spans();
  EXPECT_EQ(one(all, "attention").parent, 3U);
  EXPECT_EQ(one(all, "aten::neg").parent, one(all, "attention").id);
  EXPECT_EQ(one(all, "aten::exp").parent, 3U);
}

}  // namespace
}  // namespace weft::tensor::operator_trace_test

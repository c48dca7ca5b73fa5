#include <weft/parallel/data_parallel/internal/iteration_report.h>

#include <weft/parallel/collectives/internal/group/collectives_layer.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/trace/tracer.h>

#include <cstdio>
#include <map>
#include <string>
#include <utility>

namespace weft::data_parallel {
namespace {

std::uint64_t microseconds(std::chrono::nanoseconds time) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

void add_spans(rpc::Tracer& tracer, const IterationStats& stats, std::chrono::nanoseconds age) {
  const std::int64_t began = tracer.now() - age.count();
  const rpc::TraceContext root = tracer.span_under(std::nullopt);
  const auto add = [&](const rpc::TraceContext& context, std::string name, std::chrono::nanoseconds from,
                       std::chrono::nanoseconds to, std::uint64_t parent,
                       std::map<std::string, std::string> notes = {}) {
    rpc::Span span{.trace_high = root.trace_high, .trace_low = root.trace_low, .id = context.span};
    span.parent = parent;
    span.name = std::move(name);
    span.begin = began + from.count();
    span.end = began + to.count();
    span.work = true;
    span.notes = std::move(notes);
    tracer.add(std::move(span));
  };
  for (const BucketStats& bucket : stats.buckets)
    add(tracer.span_under(root), "bucket " + std::to_string(bucket.index), bucket.launched, bucket.reduced,
        root.span, {{"bytes", std::to_string(bucket.bytes)}, {"dtype", bucket.dtype}});
  add(root, "backward", std::chrono::nanoseconds{0}, stats.backward + stats.waited, 0);
}

}  // namespace

void IterationReport::add(const collectives::Group& group, const IterationStats& stats,
                          std::chrono::nanoseconds age) {
  const auto& agent = group.agent();
  const auto layer = collectives::CollectivesLayer::of(*agent);
  const auto count = [&](const char* figure, std::uint64_t amount) {
    layer->count(std::string("data_parallel.") + figure, amount);
  };
  count("iterations", 1);
  count("bytes", stats.bytes());
  count("backward_us", microseconds(stats.backward));
  count("waited_us", microseconds(stats.waited));
  count("communication_us", microseconds(stats.communication()));
  count("overlapped_us", microseconds(stats.overlapped()));
  if (const auto tracer = rpc::Tracer::of(*agent)) add_spans(*tracer, stats, age);
  if (const auto late = late_.add(stats)) {
    const double delay = std::chrono::duration<double, std::milli>(late->delay).count();
    char text[32];
    std::snprintf(text, sizeof text, "%.3f", delay);
    agent->log().write(
        rpc::LogLevel::warning,
        "DistributedDataParallel: the gradient of " + names_[late->parameter] + " has delayed bucket " +
            std::to_string(late->bucket) + " in " + std::to_string(LateGradients::iterations) +
            " iterations in a row, by " + text +
            " ms in the last one: reduce Options::bucket_bytes, so that the other gradients of the bucket "
            "do not wait for it");
  }
}

}  // namespace weft::data_parallel

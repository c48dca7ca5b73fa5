// The timeline of a step, from the spans that the tracers of the workers recorded. Each micro-batch is a
// trace.
#pragma once

#include <weft/parallel/schedule/draw.h>
#include <weft/rpc/trace/chrome_trace.h>
#include <weft/rpc/trace/trace_context.h>

#include <algorithm>
#include <limits>

// noted: whether the tracers record the spans of this micro-batch.
inline weft::rpc::TraceContext trace_of(std::size_t micro_batch, bool noted) {
  return {.trace_high = 1, .trace_low = micro_batch + 1, .span = 1, .sampled = noted, .state = {}};
}

// stages: the spans of the worker of each stage. The forward of a stage is a span "forward", its backward a
// span "backward nodes". Other spans are operators within these spans, or calls.
inline std::string timeline_svg(const std::vector<weft::rpc::AgentSpans>& stages, const std::string& title) {
  namespace schedule = weft::schedule;
  schedule::Schedule actions;
  schedule::Timeline measured;
  double first = std::numeric_limits<double>::infinity();
  for (const weft::rpc::AgentSpans& worker : stages) {
    const int stage = static_cast<int>(actions.ranks.size());
    auto& list = actions.ranks.emplace_back();
    auto& times = measured.ranks.emplace_back();
    actions.placement.push_back({stage});
    for (const weft::rpc::Span& span : worker.spans) {
      if (span.name != "forward" && span.name != "backward nodes") continue;
      const auto op = span.name == "forward" ? schedule::Op::forward : schedule::Op::backward;
      const auto seconds = [&](std::int64_t at) {
        return static_cast<double>(at - worker.clock.ahead) * 1e-9;
      };
      times.push_back({list.size(), seconds(span.begin), seconds(span.end)});
      list.push_back({.op = op, .stage = stage, .microbatch = static_cast<int>(span.trace_low) - 1});
      first = std::min(first, times.back().start);
    }
  }
  for (auto& times : measured.ranks)
    for (schedule::Span& span : times) span.start -= first, span.finish -= first;
  return schedule::svg(actions, {{title, measured}});
}

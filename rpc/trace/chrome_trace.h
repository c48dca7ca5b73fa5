// chrome_trace: spans of several agents as one trace in Chrome's JSON format, which ui.perfetto.dev and
// chrome://tracing show: a process for each agent, arrows from the calls made to the calls served, and work
// (operators) within the call that it is part of.
//
// Thread-safety: values; collect_spans() blocks, and is not called on the agents' own threads.
#pragma once

#include <weft/rpc/trace/clock_offset.h>
#include <weft/rpc/trace/span.h>

#include <string>
#include <vector>

namespace weft::rpc {

// The spans of one incarnation of an agent, and how far its clock is ahead of that by which the trace is
// drawn.
struct AgentSpans {
  std::string agent;
  std::uint64_t incarnation = 0;
  ClockOffset clock;
  std::uint64_t dropped = 0;
  std::vector<Span> spans;
};

// Takes all spans from agents with a Tracer, their clocks measured against this process's. An agent that is
// asked twice gives each span once. Throws what the calls fail with.
WEFT_EXPORT AgentSpans collect_spans(const Peer& peer);

// Times begin with the first span.
WEFT_EXPORT std::string chrome_trace(const std::vector<AgentSpans>& agents);

// Lanes in which no two spans overlap: for each span its lane, counted from 0; the fewest there can be.
WEFT_EXPORT std::vector<std::size_t> lanes_of(const std::vector<Span>& spans);

// The same, but work stands in the lane of its parent, where that is among the spans, has it within its
// times, and no other part of it at the same time.
WEFT_EXPORT std::vector<std::size_t> nested_lanes_of(const std::vector<Span>& spans);

}  // namespace weft::rpc

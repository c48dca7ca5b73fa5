// chrome_trace: writes the spans of several agents as one trace in Chrome's JSON format, for ui.perfetto.dev
// and chrome://tracing. Each agent is a process. An arrow connects the caller's span of a call with the
// callee's span. Work (operators) is nested in its call.
//
// Thread-safety: values; collect_spans() and measure_clock() block, so do not call them on the agents' own
// threads.
#pragma once

#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/trace/span.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::rpc {

// The difference between another agent's clock and this agent's clock. It is estimated from the midpoint of a
// round trip (Cristian's algorithm), because the other agent reads its clock between the departure of the
// request and the arrival of the reply.
struct ClockOffset {
  std::int64_t ahead = 0;      // nanoseconds: the other clock's time minus this clock's
  std::int64_t uncertain = 0;  // nanoseconds, in both directions: half the round trip
};

// One round trip, in nanoseconds. sent, received: this agent's clock when the request was sent, and when the
// reply arrived. other: the other agent's clock in between.
struct ClockSample {
  std::int64_t sent = 0, other = 0, received = 0;
};

// Computes the offset from the shortest round trip. samples: at least one.
WEFT_EXPORT ClockOffset clock_offset(const std::vector<ClockSample>& samples);

// Calls the peer's `weft.clock` for `rounds` times. Throws the errors of the calls: not_found if the peer has
// no tracer.
WEFT_EXPORT ClockOffset measure_clock(const Peer& peer, std::size_t rounds = 16);

// The spans of one incarnation of an agent, and the offset of its clock from the trace's clock.
struct AgentSpans {
  std::string agent;
  std::uint64_t incarnation = 0;
  ClockOffset clock;
  std::uint64_t dropped = 0;
  std::vector<Span> spans;
};

// Takes all spans from an agent with a Tracer, and measures its clock against this process's. Each span is
// returned once, even if the agent is queried again. If the agent records spans as fast as they are taken,
// the rest remains there after 100 replies. Throws the errors of the calls that it makes to the peer.
WEFT_EXPORT AgentSpans collect_spans(const Peer& peer);

// Returns the trace as JSON. Times are relative to the first span.
WEFT_EXPORT std::string chrome_trace(const std::vector<AgentSpans>& agents);

// Assigns each span a lane, from 0, such that spans in one lane do not overlap. Uses the minimum number of
// lanes.
WEFT_EXPORT std::vector<std::size_t> lanes_of(const std::vector<Span>& spans);

// Like lanes_of(), but work is in the lane of its parent, if the parent is among the spans, contains the
// work's times, and has no other child at the same time.
WEFT_EXPORT std::vector<std::size_t> nested_lanes_of(const std::vector<Span>& spans);

}  // namespace weft::rpc

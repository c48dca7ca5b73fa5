// Span: one side of one call, or a piece of the work within one, as a tracer notes it. Thread-safety: values.
#pragma once

#include <weft/rpc/codec/struct_codec.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::rpc {

struct Span {
  std::uint64_t trace_high = 0, trace_low = 0;
  std::uint64_t id = 0;
  std::uint64_t parent = 0;         // 0: the trace begins with it
  std::string name;                 // of the method
  bool served = false;              // by this agent; else made by it
  std::string peer;                 // the other agent, where it was known when the call began
  std::int64_t begin = 0, end = 0;  // nanoseconds of the agent's clock
  std::string error;                // the kind; empty: none
  // Neither made nor served, but a piece of work in its parent, noted by a layer above: an operator, a block
  // that a handler names, the nodes of a backward.
  bool work = false;
  std::map<std::string, std::string> notes;  // what that layer says of it: shapes, memory
};
WEFT_CODEC(Span, trace_high, trace_low, id, parent, name, served, peer, begin, end, error, work, notes)

// What a tracer hands out: the method `weft.spans`.
struct SpanBatch {
  std::string agent;
  std::uint64_t incarnation = 0;
  std::uint64_t dropped = 0;  // since the last batch, for want of room
  std::uint64_t left = 0;     // spans that are still there
  std::vector<Span> spans;    // in the order of their ends
};
WEFT_CODEC(SpanBatch, agent, incarnation, dropped, left, spans)

}  // namespace weft::rpc

// Span: one side of a call, or a piece of work within it, as a tracer records it. Thread-safety: values.
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
  std::uint64_t parent = 0;         // 0: the first span of its trace
  std::string name;                 // the method's name
  bool served = false;              // the agent served the call; false: it made the call
  std::string peer;                 // the other agent, if its name was known when the call started
  std::int64_t begin = 0, end = 0;  // nanoseconds of the agent's clock
  std::string error;                // the kind of the error; empty: success
  // true: the span is a piece of work within its parent, not a side of a call. A higher layer has recorded
  // it: an operator, a block that a handler names, or the nodes of a backward.
  bool work = false;
  std::map<std::string, std::string> notes;  // details of a piece of work: shapes, memory
};
WEFT_CODEC(Span, trace_high, trace_low, id, parent, name, served, peer, begin, end, error, work, notes)

// The result of a tracer's method `weft.spans`.
struct SpanBatch {
  std::string agent;
  std::uint64_t incarnation = 0;
  std::uint64_t dropped = 0;  // spans dropped since the last batch, because max_spans was reached
  std::uint64_t left = 0;     // spans that remain
  std::vector<Span> spans;    // in the order of their ends
};
WEFT_CODEC(SpanBatch, agent, incarnation, dropped, left, spans)

}  // namespace weft::rpc

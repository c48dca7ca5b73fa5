// RankSpans: the times of one rank's computations in a step, by the rank's clock. Plain data.
#pragma once

#include <weft/parallel/schedule/simulate.h>
#include <weft/rpc/codec/struct_codec.h>

#include <cstdint>
#include <vector>

namespace weft::schedule {

WEFT_CODEC(Span, action, start, finish)

}  // namespace weft::schedule

namespace weft::pipeline {

struct RankSpans {
  std::vector<schedule::Span> spans;  // in seconds since the rank began the step
  std::int64_t began_ns = 0;          // when it began the step, since 1970
};
WEFT_CODEC(RankSpans, spans, began_ns)

}  // namespace weft::pipeline

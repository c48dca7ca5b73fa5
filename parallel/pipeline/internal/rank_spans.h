// RankSpans: the times of one rank's computations in a step, by the rank's clock. Plain data.
#pragma once

#include <weft/parallel/schedule/simulate.h>
#include <weft/rpc/codec/struct_codec.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
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

inline std::int64_t nanoseconds_since_1970() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

// Joins the spans of all ranks. The times of the result count from the start of the rank that began first.
// ranks: by rank.
inline schedule::Timeline timeline_of(const std::vector<RankSpans>& ranks) {
  std::int64_t first = std::numeric_limits<std::int64_t>::max();
  for (const RankSpans& rank : ranks) first = std::min(first, rank.began_ns);
  schedule::Timeline timeline;
  for (const RankSpans& rank : ranks) {
    const double late = static_cast<double>(rank.began_ns - first) * 1e-9;
    auto& spans = timeline.ranks.emplace_back();
    for (const schedule::Span& span : rank.spans)
      spans.push_back({span.action, span.start + late, span.finish + late});
  }
  return timeline;
}

}  // namespace weft::pipeline

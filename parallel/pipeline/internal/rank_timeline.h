// The clock of RankSpans, and the timeline of a step that they form together.
#pragma once

#include <weft/parallel/pipeline/rank_spans.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

namespace weft::pipeline {

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

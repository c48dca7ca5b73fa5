// The comparison as a standalone SVG, readable on a light and on a dark page. chart() is a pure function.
//
// Each case has a panel, which shows its leading figure on a separate logarithmic scale. A line through the
// panel marks the subject's value, and a dot marks the value of each peer. A bar connects the line with the
// dot, so that its length is the ratio. The figure and the ratio subject/peer, median and worst, are printed
// next to the dots. A peer that failed is listed with the reason.
#pragma once

#include "bench/harness/summary.h"

namespace weft::bench {

std::string chart(const std::vector<Entry>& entries, const std::string& subject, const std::string& title);

// The ticks of a logarithmic axis from `low` to `high`, both above 0: 1, 2 or 5 times powers of ten, or
// powers of ten alone if there would be more than eight ticks. The first tick is at or below `low`, the last
// at or above `high`.
std::vector<double> log_ticks(double low, double high);

}  // namespace weft::bench

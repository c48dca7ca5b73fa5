// The comparison as a drawing: a standalone SVG, readable on a light and on a dark page. A pure function.
//
// A case a panel, its leading figure on a logarithmic scale of its own: a dot for each peer, and from the
// subject's value, which is a line through the panel, a bar to the dot, so that a bar's length is the ratio.
// Beside the dots stand the figure and the ratio subject/peer, median and worst. Peers that failed are named
// with their reason.
#pragma once

#include "bench/harness/summary.h"

namespace weft::bench {

std::string chart(const std::vector<Entry>& entries, const std::string& subject, const std::string& title);

// What a logarithmic axis from `low` to `high`, both above 0, is marked with: 1, 2 or 5 times powers of ten,
// or powers of ten alone where those would be more than eight; it begins at or below `low` and ends at or
// above `high`.
std::vector<double> log_ticks(double low, double high);

}  // namespace weft::bench

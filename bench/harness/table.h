// Formats the table that is printed at the end of a run. A pure function.
#pragma once

#include "bench/harness/summary.h"

namespace weft::bench {

// Has one line for each entry: its figures, and the ratio subject/peer of its first figure, as the median and
// the worst over the rounds.
std::string table(const std::vector<Entry>& entries, const std::string& subject);

}  // namespace weft::bench

// The table that a run ends with. A pure function.
#pragma once

#include "bench/harness/summary.h"

namespace weft::bench {

// One line an entry: its figures, and the ratio subject/peer of its first figure, median and worst over
// rounds.
std::string table(const std::vector<Entry>& entries, const std::string& subject);

}  // namespace weft::bench

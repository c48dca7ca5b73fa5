#include "bench/harness/schedule.h"

namespace weft::bench {

std::vector<Turn> interleave(const std::vector<std::size_t>& contenders, int rounds) {
  std::vector<Turn> turns;
  for (int round = 1; round <= rounds; ++round)
    for (std::size_t i = 0; i < contenders.size(); ++i)
      for (std::size_t j = 0; j < contenders[i]; ++j)
        turns.push_back({round, i, (j + static_cast<std::size_t>(round - 1)) % contenders[i]});
  return turns;
}

}  // namespace weft::bench

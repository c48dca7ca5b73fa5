#include <weft/parallel/schedule/schedule.h>

namespace weft::schedule {

std::vector<Edge> chain(int stages) {
  std::vector<Edge> edges;
  for (int stage = 0; stage + 1 < stages; ++stage) edges.push_back({stage, stage + 1});
  return edges;
}

std::vector<std::vector<int>> looped_placement(int ranks, int chunks) {
  std::vector<std::vector<int>> placement;
  for (int stage = 0; stage < ranks * chunks; ++stage) placement.push_back({stage % ranks});
  return placement;
}

std::vector<std::vector<int>> v_placement(int ranks) {
  std::vector<std::vector<int>> placement;
  for (int stage = 0; stage < 2 * ranks; ++stage)
    placement.push_back({stage < ranks ? stage : 2 * ranks - 1 - stage});
  return placement;
}

}  // namespace weft::schedule

#include <weft/parallel/elastic/plan/pipeline_places.h>

#include <cstddef>

namespace weft::elastic {

std::vector<std::optional<PipelinePlace>> place_in_pipelines(
    const std::vector<std::optional<PipelinePlace>>& before, int ranks) {
  const int pipelines = static_cast<int>(before.size()) / ranks;
  std::vector<std::optional<PipelinePlace>> places(before.size());
  std::vector<bool> taken(static_cast<std::size_t>(pipelines * ranks));
  const auto take = [&](std::size_t rank, PipelinePlace place) {
    const auto index = static_cast<std::size_t>(place.pipeline * ranks + place.rank);
    if (taken[index]) return false;
    taken[index] = true;
    places[rank] = place;
    return true;
  };
  for (std::size_t rank = 0; rank < before.size(); ++rank)
    if (before[rank] && before[rank]->pipeline < pipelines) take(rank, *before[rank]);
  for (std::size_t rank = 0; rank < before.size(); ++rank)
    for (int pipeline = 0; before[rank] && !places[rank] && pipeline < pipelines; ++pipeline)
      take(rank, {pipeline, before[rank]->rank});
  for (std::size_t rank = 0; rank < before.size(); ++rank)
    for (int i = 0; !places[rank] && i < pipelines * ranks; ++i) take(rank, {i / ranks, i % ranks});
  return places;
}

}  // namespace weft::elastic

#include <weft/parallel/elastic/plan/pipeline_places.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <utility>

namespace weft::elastic {
namespace pipeline_places_test {

using Place = std::optional<PipelinePlace>;
using Places = std::vector<Place>;

Place at(int pipeline, int rank) { return PipelinePlace{pipeline, rank}; }
const Place nowhere;

TEST(PipelinePlaces, NewRanksFormPipelinesInTheirOrder) {
  EXPECT_EQ(place_in_pipelines(Places(5), 2), (Places{at(0, 0), at(0, 1), at(1, 0), at(1, 1), nowhere}));
  EXPECT_EQ(place_in_pipelines(Places(1), 2), Places(1));
}

TEST(PipelinePlaces, ANewRankTakesTheLostPlace) {
  EXPECT_EQ(place_in_pipelines({at(0, 0), at(1, 0), at(1, 1), nowhere}, 2),
            (Places{at(0, 0), at(1, 0), at(1, 1), at(0, 1)}));
}

TEST(PipelinePlaces, APipelineWithoutALossKeepsItsPlaces) {
  EXPECT_EQ(place_in_pipelines({at(0, 1), at(1, 0), at(1, 1), at(2, 0), at(2, 1)}, 2),
            (Places{at(0, 1), at(1, 0), at(1, 1), at(0, 0), nowhere}));
}

// Two ranks with equal stages, and none with the others.
TEST(PipelinePlaces, ARankChangesItsStagesIfItsPlaceIsNotNeeded) {
  EXPECT_EQ(place_in_pipelines({at(0, 1), at(1, 1)}, 2), (Places{at(0, 1), at(0, 0)}));
}

TEST(PipelinePlaces, AllPlacesAreTakenOnceAndKeptIfTheyAreNeeded) {
  std::mt19937_64 random(1);
  Places places;
  for (int round = 0; round < 2000; ++round) {
    const int ranks = 1 + static_cast<int>(random() % 4);
    Places before;
    std::vector<std::size_t> had(static_cast<std::size_t>(ranks));
    for (const Place& place : places)
      if (random() % 4 != 0 && (!place || place->rank < ranks)) before.push_back(place);
    for (std::size_t more = random() % 4; more > 0; --more) before.push_back(nowhere);
    for (const Place& place : before)
      if (place) ++had[static_cast<std::size_t>(place->rank)];
    places = place_in_pipelines(before, ranks);
    const std::size_t pipelines = before.size() / static_cast<std::size_t>(ranks);
    std::set<std::pair<int, int>> taken;
    std::vector<std::size_t> kept(static_cast<std::size_t>(ranks));
    for (std::size_t rank = 0; rank < places.size(); ++rank) {
      if (!places[rank]) continue;
      EXPECT_TRUE(taken.insert({places[rank]->pipeline, places[rank]->rank}).second);
      EXPECT_LT(static_cast<std::size_t>(places[rank]->pipeline), pipelines);
      if (before[rank] && before[rank]->rank == places[rank]->rank)
        ++kept[static_cast<std::size_t>(places[rank]->rank)];
    }
    EXPECT_EQ(taken.size(), pipelines * static_cast<std::size_t>(ranks));
    for (std::size_t rank = 0; rank < kept.size(); ++rank)
      EXPECT_EQ(kept[rank], std::min(had[rank], pipelines));
  }
}

}  // namespace pipeline_places_test
}  // namespace weft::elastic

#include <weft/parallel/elastic/sharded/exchange_plan.h>

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "tests/support/errors.h"

namespace weft::elastic::detail {
namespace exchange_plan_test {

using sharded::SliceRange;

// Tensors that lie one after the other and are cut at random places into a shard for each rank.
std::vector<std::vector<SliceRange>> shards(const std::vector<std::int64_t>& sizes, std::size_t ranks,
                                            std::mt19937& random) {
  std::int64_t all = 0;
  for (const std::int64_t size : sizes) all += size;
  std::vector<std::int64_t> cuts{0, all};
  while (cuts.size() <= ranks) cuts.push_back(std::uniform_int_distribution<std::int64_t>(0, all)(random));
  std::sort(cuts.begin(), cuts.end());
  std::vector<std::vector<SliceRange>> result(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    std::int64_t first = 0;
    for (std::size_t i = 0; i < sizes.size(); first += sizes[i++]) {
      const std::int64_t begin = std::max(cuts[rank], first),
                         end = std::min(cuts[rank + 1], first + sizes[i]);
      if (begin < end)
        result[rank].push_back({std::to_string(i), {sizes[i]}, "Float", begin - first, end - first, {}});
    }
  }
  return result;
}

// With copies on the next rank, some deaths and other numbers of ranks: each wanted element comes from a rank
// that has it, and from this one if it has it; otherwise the missing workers are named.
TEST(ExchangePlan, AssignsEachElementOrNamesItsLastOwner) {
  std::mt19937 random(7);
  int lost = 0;
  for (int round = 0; round < 500; ++round) {
    const auto below = [&](std::size_t n) {
      return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
    };
    std::vector<std::int64_t> sizes(1 + below(4));
    for (std::int64_t& size : sizes) size = static_cast<std::int64_t>(1 + below(40));
    const std::size_t before = 1 + below(5), after = 1 + below(5);
    const auto old = shards(sizes, before, random);
    std::vector<std::string> workers;
    for (std::size_t i = 0; i < before; ++i) workers.push_back("worker" + std::to_string(i));
    std::vector<RankIndex> ranks(after);
    std::set<std::size_t> known;
    for (std::size_t rank = 0; rank < std::min(before, after); ++rank) {  // the last ones are gone, or new
      ranks[rank].workers = workers;
      for (const std::size_t shard : std::set{rank, (rank + 1) % before}) {
        ranks[rank].shards.push_back({workers[shard], old[shard]});
        known.insert(shard);
      }
    }
    const auto wanted = shards(sizes, after, random);
    std::string missing;
    for (std::size_t shard = 0; shard < before; ++shard)
      if (!known.contains(shard) && !old[shard].empty()) missing = workers[shard];
    std::vector<ExchangePiece> pieces;
    const auto error = test::error_of([&] { pieces = plan_exchange(ranks, wanted); });
    ASSERT_EQ(error.has_value(), !missing.empty());
    if (error) {
      ++lost;
      EXPECT_NE(std::string(error->what()).find(missing), std::string::npos) << error->what();
      continue;
    }
    std::map<std::pair<int, std::string>, std::set<std::int64_t>> got;  // by rank and tensor
    for (const ExchangePiece& piece : pieces) {
      const auto& slices = ranks[static_cast<std::size_t>(piece.from)].shards[piece.shard].slices;
      const auto slice = std::find_if(slices.begin(), slices.end(),
                                      [&](const SliceRange& range) { return range.name == piece.name; });
      ASSERT_NE(slice, slices.end());
      EXPECT_EQ(piece.elements.from, piece.elements.to);
      EXPECT_GE(piece.elements.from, slice->begin);
      EXPECT_LE(piece.elements.from + piece.elements.count, slice->end);
      for (std::int64_t i = 0; i < piece.elements.count; ++i)
        EXPECT_TRUE(got[std::pair(piece.to, piece.name)].insert(piece.elements.to + i).second);
    }
    for (std::size_t rank = 0; rank < after; ++rank)
      for (const SliceRange& range : wanted[rank]) {
        const auto& elements = got[std::pair(static_cast<int>(rank), range.name)];
        EXPECT_EQ(elements.size(), static_cast<std::size_t>(range.end - range.begin));
        EXPECT_EQ(*elements.begin(), range.begin);
        EXPECT_EQ(*elements.rbegin(), range.end - 1);
      }
  }
  EXPECT_GT(lost, 50);
}

TEST(ExchangePlan, RefusesDifferentModules) {
  const std::vector<RankIndex> ranks{
      {.shards = {{"anna", {{"a", {4}, "Float", 0, 4, {}}}}}, .workers = {"anna"}}};
  const auto text_of = [&](const SliceRange& wanted) {
    const auto error = test::error_of([&] { plan_exchange(ranks, {{wanted}}); });
    return error ? std::string(error->what()) : std::string();
  };
  EXPECT_NE(text_of({"a", {4}, "Double", 0, 4, {}}).find("a is Float[4] on rank 0 and Double[4] on rank 0"),
            std::string::npos);
  EXPECT_NE(text_of({"b", {4}, "Float", 0, 4, {}}).find("no worker has all elements of b"),
            std::string::npos);
  EXPECT_EQ(text_of({"a", {4}, "Float", 1, 3, {}}), "");
}

}  // namespace exchange_plan_test
}  // namespace weft::elastic::detail

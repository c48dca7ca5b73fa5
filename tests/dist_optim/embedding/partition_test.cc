// The owner of each id: balance, and the ids that move when an owner is added. Also batches of ids.
#include <weft/dist_optim/embedding/id_batch.h>

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>

namespace weft::dist_optim::embedding_partition_test {
namespace {

TEST(EmbeddingPartition, OwnersHaveEqualShares) {
  for (const std::uint32_t owners : {1u, 2u, 3u, 7u, 16u}) {
    std::vector<int> rows(owners);
    constexpr int ids = 200'000;
    for (int id = 0; id < ids; ++id) ++rows[owner_of(id * 8, owners)];
    const double mean = static_cast<double>(ids) / owners;
    for (const int count : rows) EXPECT_NEAR(count, mean, 5 * std::sqrt(mean)) << owners;
  }
}

TEST(EmbeddingPartition, ANewOwnerGetsItsShareAndNoOtherRowMoves) {
  for (std::uint32_t owners = 1; owners < 12; ++owners) {
    int moved = 0;
    constexpr int ids = 100'000;
    for (int id = 0; id < ids; ++id) {
      const auto before = owner_of(id, owners), after = owner_of(id, owners + 1);
      if (before == after) continue;
      ASSERT_EQ(after, owners);
      ++moved;
    }
    const double share = static_cast<double>(ids) / (owners + 1);
    EXPECT_NEAR(moved, share, 5 * std::sqrt(share)) << owners;
  }
}

// Programs of different releases must agree.
TEST(EmbeddingPartition, IsTheSameInAllReleases) {
  EXPECT_EQ(owner_of(0, 1), 0u);
  std::vector<std::uint32_t> owners;
  for (const std::int64_t id : {0ll, 1ll, -1ll, 1'000'000'007ll, -9'223'372'036'854'775'807ll - 1})
    owners.push_back(owner_of(id, 10));
  EXPECT_EQ(owners, (std::vector<std::uint32_t>{8, 9, 3, 2, 8}));
}

TEST(EmbeddingIdBatch, HasEachIdOnceInItsOrder) {
  std::mt19937_64 random(1);
  for (const int count : {0, 1, 2, 1000}) {
    std::vector<std::int64_t> given;
    for (int i = 0; i < count; ++i) given.push_back(static_cast<std::int64_t>(random() % 300) - 150);
    const UniqueIds unique = unique_ids(given);
    ASSERT_EQ(unique.inverse.size(), given.size());
    std::map<std::int64_t, std::size_t> seen;
    for (std::size_t i = 0; i < given.size(); ++i) {
      const auto at = static_cast<std::size_t>(unique.inverse[i]);
      EXPECT_EQ(unique.ids.at(at), given[i]);
      EXPECT_EQ(seen.emplace(given[i], seen.size()).first->second, at);
    }
    EXPECT_EQ(unique.ids.size(), seen.size());
  }
}

TEST(EmbeddingIdBatch, IsSplitByOwner) {
  std::vector<std::int64_t> ids;
  std::vector<std::size_t> odd;
  for (std::size_t i = 0; i < 500; ++i) {
    ids.push_back(static_cast<std::int64_t>(i * 31));
    if (i % 2 != 0) odd.push_back(i);
  }
  const auto batches = split_by_owner(ids, odd, 3);
  ASSERT_EQ(batches.size(), 3u);
  std::size_t all = 0;
  for (std::uint32_t owner = 0; owner < 3; ++owner) {
    const OwnerBatch& batch = batches[owner];
    ASSERT_EQ(batch.ids.size(), batch.positions.size());
    for (std::size_t i = 0; i < batch.ids.size(); ++i) {
      EXPECT_EQ(ids[batch.positions[i]], batch.ids[i]);
      EXPECT_EQ(batch.positions[i] % 2, 1u);
      EXPECT_EQ(owner_of(batch.ids[i], 3), owner);
    }
    all += batch.ids.size();
  }
  EXPECT_EQ(all, odd.size());
}

TEST(EmbeddingIdBatch, GradientsAreSummedForEachId) {
  GradientSums sums(2);
  const std::vector<std::int64_t> first{5, 7}, second{7, 5, 9, 7};
  const float some[] = {1, 2, 3, 4}, more[] = {10, 20, 100, 200, 1, 1, 1000, 2000};
  sums.add(first, some);
  sums.add(second, more);
  const auto taken = sums.take();
  EXPECT_EQ(taken.ids, (std::vector<std::int64_t>{5, 7, 9}));
  EXPECT_EQ(taken.gradients, (std::vector<float>{101, 202, 1013, 2024, 1, 1}));
  EXPECT_TRUE(sums.take().ids.empty());
}

}  // namespace
}  // namespace weft::dist_optim::embedding_partition_test

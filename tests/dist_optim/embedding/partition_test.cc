// The owner of each id, and the ids that move when an owner is added. Also batches of ids.
#include <weft/dist_optim/embedding/id_batch.h>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace weft::dist_optim::embedding_partition_test {
namespace {

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
  const UniqueIds unique = unique_ids(std::vector<std::int64_t>{7, -3, 7, 9, -3});
  EXPECT_EQ(unique.ids, (std::vector<std::int64_t>{7, -3, 9}));
  EXPECT_EQ(unique.inverse, (std::vector<std::int64_t>{0, 1, 0, 2, 1}));
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

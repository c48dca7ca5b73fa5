#include <weft/rpc/core/id_map.h>

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <random>

namespace weft::rpc::id_map_test {
namespace {

TEST(IdMap, HoldsInsertedValues) {
  IdMap<int> map(1);
  EXPECT_EQ(map.find(0), nullptr);
  EXPECT_FALSE(map.take(0).has_value());
  map.insert(0, 10);
  map.insert(~std::uint64_t{0}, 11);
  ASSERT_NE(map.find(0), nullptr);
  EXPECT_EQ(*map.find(0), 10);
  EXPECT_TRUE(map.contains(~std::uint64_t{0}));
  EXPECT_EQ(map.take(0), 10);
  EXPECT_FALSE(map.contains(0));
  EXPECT_EQ(map.size(), 1U);
}

TEST(IdMap, IsAMap) {
  std::mt19937_64 random(7);
  for (const std::uint64_t spread : {std::uint64_t{16}, std::uint64_t{1000}, ~std::uint64_t{0}}) {
    IdMap<int> map(random());
    std::map<std::uint64_t, int> same;
    for (int i = 0; i < 20000; ++i) {
      const std::uint64_t id = random() % spread;
      if (random() % 3 != 0) {
        if (!same.emplace(id, i).second) continue;
        map.insert(id, i);
      } else {
        const auto found = same.find(id);
        const auto taken = map.take(id);
        ASSERT_EQ(taken.has_value(), found != same.end());
        if (!taken) continue;
        ASSERT_EQ(*taken, found->second);
        same.erase(found);
      }
      ASSERT_EQ(map.size(), same.size());
    }
    for (const auto& [id, value] : same) ASSERT_EQ(*map.find(id), value);
    const auto all = map.take_all();
    EXPECT_TRUE(
        std::equal(all.begin(), all.end(), same.begin(), same.end(),
                   [](const auto& a, const auto& b) { return a.first == b.first && a.second == b.second; }));
    EXPECT_EQ(map.size(), 0U);
  }
}

TEST(IdMap, ReleasesExtractedEntries) {
  IdMap<std::shared_ptr<int>> map(3);
  auto value = std::make_shared<int>(5);
  for (std::uint64_t id = 0; id < 100; ++id) map.insert(id, value);
  for (std::uint64_t id = 0; id < 100; id += 2) (void)map.take(id);
  EXPECT_EQ(value.use_count(), 51);
  (void)map.take_all();
  EXPECT_EQ(value.use_count(), 1);
}

}  // namespace
}  // namespace weft::rpc::id_map_test

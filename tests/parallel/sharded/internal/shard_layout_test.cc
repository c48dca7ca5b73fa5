#include <weft/parallel/sharded/internal/shard_layout.h>

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace weft::sharded {
namespace {

using Slices = std::vector<ShardLayout::Slice>;

TEST(ShardLayouts, APartEndsWithinAParameter) {
  const std::vector<std::int64_t> elements{40, 10};
  const ShardLayout layout(elements, 2);
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{0, 48}));
  EXPECT_EQ(layout.part, 32);
  EXPECT_EQ(layout.elements(), 64);
  EXPECT_EQ(layout.slices[0], (Slices{{0, 0, 32, 0}}));
  EXPECT_EQ(layout.slices[1], (Slices{{0, 32, 40, 0}, {1, 0, 10, 16}}));
}

TEST(ShardLayouts, EachElementIsInOneSlice) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::vector<std::int64_t> elements(random() % 6);
    for (auto& count : elements) count = static_cast<std::int64_t>(random() % 200);
    const int ranks = 1 + static_cast<int>(random() % 5);
    const ShardLayout layout(elements, ranks);
    ASSERT_EQ(layout.slices.size(), static_cast<std::size_t>(ranks));
    EXPECT_EQ(layout.part % 16, 0);
    std::vector<std::int64_t> covered(elements.size());
    for (std::size_t rank = 0; rank < layout.slices.size(); ++rank)
      for (const auto& slice : layout.slices[rank]) {
        EXPECT_LT(slice.begin, slice.end);
        EXPECT_EQ(slice.begin, covered[slice.parameter]) << "without gaps, in the order of the ranks";
        covered[slice.parameter] = slice.end;
        EXPECT_EQ(static_cast<std::int64_t>(rank) * layout.part + slice.offset,
                  layout.offsets[slice.parameter] + slice.begin);
        EXPECT_LE(slice.offset + slice.end - slice.begin, layout.part);
      }
    EXPECT_EQ(covered, elements);
  }
}

}  // namespace
}  // namespace weft::sharded

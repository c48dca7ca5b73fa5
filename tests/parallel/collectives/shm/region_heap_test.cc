#include <weft/parallel/collectives/internal/shm/region_heap.h>

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace weft::collectives::testing {
namespace region_heap_test {

TEST(RegionHeap, AllocatesAlignedBlocks) {
  RegionHeap heap(4096, 1 << 20);
  EXPECT_EQ(heap.take(1), 4096U);
  EXPECT_EQ(heap.take(65), 4096U + 64);
  EXPECT_EQ(heap.take(0), 4096U + 192);
  EXPECT_EQ(heap.take(4096), 8192U);
  EXPECT_EQ(heap.in_use(), 64U + 128 + 64 + 4096);
}

TEST(RegionHeap, RefusesTooLargeAllocations) {
  RegionHeap heap(0, 8192);
  EXPECT_FALSE(heap.take(8193));
  EXPECT_FALSE(heap.take(~std::size_t{0}));
  ASSERT_EQ(heap.take(8192), 0U);
  EXPECT_FALSE(heap.take(1));
  heap.give_back(0);
  EXPECT_EQ(heap.take(8192), 0U);
  EXPECT_FALSE(RegionHeap(4096, 4096).take(1));
}

// Allocations never overlap, and after all are freed the heap is one free block again.
TEST(RegionHeap, MergesFreedBlocks) {
  constexpr std::size_t begin = 4096, end = 1 << 20;
  std::size_t full = 0;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    RegionHeap heap(begin, end);
    std::map<std::size_t, std::size_t> used;  // begin -> end
    for (int step = 0; step < 2000; ++step) {
      if (random() % 3 != 0 || used.empty()) {
        const std::size_t bytes = random() % 4 == 0 ? random() % 50'000 : random() % 500;
        const auto part = heap.take(bytes);
        if (!part) {
          ++full;
          continue;
        }
        const auto next = used.lower_bound(*part);
        ASSERT_GE(*part, begin);
        ASSERT_LE(*part + bytes, end);
        ASSERT_TRUE(next == used.end() || *part + bytes <= next->first);
        ASSERT_TRUE(next == used.begin() || std::prev(next)->second <= *part);
        used[*part] = *part + bytes;
      } else {
        const auto part = std::next(used.begin(), static_cast<std::ptrdiff_t>(random() % used.size()));
        heap.give_back(part->first);
        used.erase(part);
      }
    }
    for (const auto& [part, last] : used) heap.give_back(part);
    EXPECT_EQ(heap.in_use(), 0U);
    EXPECT_EQ(heap.take(end - begin), begin);
  }
  EXPECT_GT(full, 0U);
}

}  // namespace region_heap_test
}  // namespace weft::collectives::testing

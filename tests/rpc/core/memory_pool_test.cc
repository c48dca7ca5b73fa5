#include <weft/rpc/core/memory_pool.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace weft::rpc::memory_pool_test {
namespace {

constexpr std::size_t mib = 1U << 20;

bool aligned(const Buffer& buffer) {
  return reinterpret_cast<std::uintptr_t>(buffer.data()) % Buffer::alignment == 0;
}

TEST(MemoryPool, ABlockIsReusedForTheSameSize) {
  MemoryPool pool(64 * mib);
  const std::byte* first = nullptr;
  {
    const Buffer block = pool.allocate(mib);
    first = block.data();
    EXPECT_EQ(block.size(), mib);
    EXPECT_TRUE(aligned(block));
    EXPECT_EQ(pool.counts().kept_bytes, 0U);
  }
  EXPECT_EQ(pool.counts().kept_bytes, mib);
  const Buffer again = pool.allocate(mib - 1000);  // of the same step
  EXPECT_EQ(again.data(), first);
  EXPECT_EQ(again.size(), mib - 1000);
  const Buffer other = pool.allocate(mib);
  EXPECT_NE(other.data(), first);
  EXPECT_EQ(pool.counts().hits, 1U);
  EXPECT_EQ(pool.counts().misses, 2U);
}

TEST(MemoryPool, CopiesOfABufferKeepItsBlock) {
  MemoryPool pool(64 * mib);
  Buffer copy;
  {
    const Buffer block = pool.allocate(mib);
    copy = block;
  }
  const Buffer other = pool.allocate(mib);
  EXPECT_NE(other.data(), copy.data());
}

TEST(MemoryPool, SmallBlocksAreNotKept) {
  MemoryPool pool(64 * mib);
  (void)pool.allocate(MemoryPool::smallest - 1);
  (void)pool.allocate(0);
  const auto counts = pool.counts();
  EXPECT_EQ(counts.hits + counts.misses + counts.kept_bytes, 0U);
}

TEST(MemoryPool, KeepsNoMoreThanItsLimit) {
  MemoryPool pool(4 * mib);
  {
    std::vector<Buffer> blocks;
    for (int i = 0; i < 10; ++i) blocks.push_back(pool.allocate(mib));
  }
  EXPECT_EQ(pool.counts().kept_bytes, 4 * mib);
  (void)pool.allocate(64 * mib);
  EXPECT_LE(pool.counts().kept_bytes, 4 * mib) << "a block beyond the bound is not kept at all";
}

TEST(MemoryPool, TheOldestBlocksAreFreedFirst) {
  MemoryPool pool(3 * mib);
  (void)pool.allocate(2 * mib);
  (void)pool.allocate(mib);
  (void)pool.allocate(mib + mib / 2);  // 4.5 MiB: the first goes
  EXPECT_EQ(pool.counts().kept_bytes, 2 * mib + mib / 2);
  const auto before = pool.counts().misses;
  (void)pool.allocate(2 * mib);
  EXPECT_EQ(pool.counts().misses, before + 1);
}

TEST(MemoryPool, ABlockMayOutliveThePool) {
  Buffer block;
  {
    MemoryPool pool(64 * mib);
    block = pool.allocate(mib);
  }
  std::memset(block.data(), 7, block.size());
  EXPECT_EQ(block.data()[mib - 1], std::byte{7});
}

TEST(MemoryPool, BlockSizesWasteAnEighthAtMost) {
  for (std::size_t bytes = MemoryPool::smallest; bytes < 300 * mib; bytes += bytes / 37 + 1) {
    const std::size_t block = MemoryPool::block_size(bytes);
    ASSERT_GE(block, bytes);
    ASSERT_LE(block - bytes, bytes / 8) << bytes;
    ASSERT_EQ(MemoryPool::block_size(block), block) << "a block size maps to itself";
  }
  EXPECT_EQ(MemoryPool::block_size(~std::size_t{0}), ~std::size_t{0});
}

TEST(MemoryPool, IsSharedByThreads) {
  MemoryPool pool(8 * mib);
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&pool, t] {
      std::mt19937 random(t);
      std::vector<Buffer> held(8);
      for (int i = 0; i < 500; ++i) {
        Buffer& place = held[random() % held.size()];
        place = pool.allocate(MemoryPool::smallest + random() % mib);
        place.data()[0] = place.data()[place.size() - 1] = std::byte(t);
      }
      for (const Buffer& buffer : held) {
        if (buffer.empty()) continue;
        EXPECT_EQ(buffer.data()[0], std::byte(t));
        EXPECT_EQ(buffer.data()[buffer.size() - 1], std::byte(t));
      }
    });
  for (auto& thread : threads) thread.join();
  EXPECT_LE(pool.counts().kept_bytes, 8 * mib);
}

}  // namespace
}  // namespace weft::rpc::memory_pool_test

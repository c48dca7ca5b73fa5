#include <weft/parallel/collectives/internal/shm/shared_region.h>
#include <weft/parallel/collectives/internal/shm/shared_space.h>

#include <gtest/gtest.h>

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/errors.h"

namespace weft::collectives::testing {
namespace shared_region_test {

using rpc::ErrorKind;

TEST(SharedRegion, IsSharedByTwoProcesses) {
  const auto region = SharedRegion::create(1 << 20);
  const RegionAddress address = region->address();
  region->base()[5000] = std::byte{7};
  const pid_t child = ::fork();
  if (child == 0) {  // the child reports by its exit status, without exceptions or test macros
    const auto other = SharedRegion::open(address);
    const bool seen = other->base()[5000] == std::byte{7};
    other->base()[6000] = std::byte{8};
    ::_exit(seen ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(region->base()[6000], std::byte{8});
}

TEST(SharedRegion, IsNotOpenedByAWrongAddress) {
  const auto region = SharedRegion::create(1 << 20), another = SharedRegion::create(1 << 20);
  const auto refusal = [](RegionAddress address) {
    return test::kind_of([&] { SharedRegion::open(address); });
  };
  RegionAddress address = region->address();
  address.descriptor = another->address().descriptor;
  EXPECT_EQ(refusal(address), ErrorKind::protocol_error);
  address = region->address();
  address.bytes /= 2;
  EXPECT_EQ(refusal(address), ErrorKind::protocol_error);
  address = region->address();
  region->close_descriptor();
  EXPECT_EQ(refusal(address), ErrorKind::unavailable);
  address.descriptor = 0;  // the descriptor of standard input
  EXPECT_NE(refusal(address), std::nullopt);
}

TEST(SharedRegion, CostsNothingUntilItIsWritten) {
  const auto region = SharedRegion::create(std::size_t{1} << 40);  // a terabyte
  region->base()[(std::size_t{1} << 40) - 1] = std::byte{1};
  region->provide(1 << 20, 10'000);
  EXPECT_EQ(region->base()[1 << 20], std::byte{0});
}

class Space : public ::testing::Test {
 protected:
  static constexpr std::size_t heap = 1 << 20;
  Space() {
    std::vector<std::shared_ptr<SharedRegion>> regions;
    for (int rank = 0; rank < 2; ++rank)
      regions.push_back(SharedRegion::create(SharedSpace::region_bytes(2, heap)));
    space = std::make_shared<SharedSpace>(regions, 1, false);
    other = std::make_shared<SharedSpace>(regions, 0, false);
  }
  std::shared_ptr<SharedSpace> space, other;
};

TEST_F(Space, OtherRanksFindItsMemoryByOffset) {
  auto memory = space->allocate(1000);
  ASSERT_NE(memory, nullptr);
  const auto offset = space->offset_of(memory.get() + 8, 992);
  ASSERT_TRUE(offset);
  std::memset(memory.get(), 5, 1000);
  EXPECT_EQ(other->memory_of(1, *offset, 992)[0], std::byte{5});
  EXPECT_FALSE(other->offset_of(memory.get() + 8, 992)) << "of another rank";
  int elsewhere = 0;
  EXPECT_FALSE(space->offset_of(reinterpret_cast<std::byte*>(&elsewhere), sizeof elsewhere));
}

TEST_F(Space, HasNoMoreThanItsHeap) {
  EXPECT_EQ(space->allocate(heap + 1), nullptr);
  EXPECT_EQ(space->allocate(0), nullptr);
  auto all = space->allocate(heap);
  EXPECT_NE(all, nullptr);
  EXPECT_EQ(space->allocate(1), nullptr);
  all = nullptr;
  EXPECT_NE(space->allocate(heap), nullptr);
}

TEST_F(Space, InvalidOffsetsAreRefused) {
  const std::uint64_t end = SharedSpace::region_bytes(2, heap);
  const auto refusal = [&](std::uint64_t offset, std::size_t bytes) {
    return test::kind_of([&] { space->memory_of(0, offset, bytes); });
  };
  EXPECT_EQ(refusal(0, 8), ErrorKind::protocol_error) << "the controls";
  EXPECT_EQ(refusal(end - 8, 9), ErrorKind::protocol_error);
  EXPECT_EQ(refusal(end + 64, 0), ErrorKind::protocol_error);
  EXPECT_EQ(refusal(SharedHeader::nowhere, 1), ErrorKind::protocol_error);
  EXPECT_EQ(refusal(end - 8, ~std::size_t{0}), ErrorKind::protocol_error);
  EXPECT_EQ(refusal(end - 8, 8), std::nullopt);
}

}  // namespace shared_region_test
}  // namespace weft::collectives::testing

#include <weft/rpc/transport/shm/segment.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>

#include "tests/support/errors.h"
#include "tests/support/leaks.h"

namespace weft::rpc::segment_test {
namespace {

using namespace test;

constexpr std::size_t most = 1U << 20;
constexpr int sealed = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// A memfd as a peer might create it.
Descriptor memory(std::size_t size, int seals) {
  Descriptor made(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (::ftruncate(made.get(), static_cast<off_t>(size)) != 0) throw std::runtime_error("ftruncate");
  if (seals != 0 && ::fcntl(made.get(), F_ADD_SEALS, seals) != 0) throw std::runtime_error("seals");
  return made;
}

const std::size_t page = ShmSegment::page_size();

TEST(ShmSegment, IsZeroedAndTouchesNoPage) {
  const ShmSegment segment = ShmSegment::create(1U << 20);
  std::vector<unsigned char> resident((page + 2 * segment.capacity()) / page, 1);
  ASSERT_EQ(::mincore(segment.control(), page + 2 * segment.capacity(), resident.data()), 0);
  for (const unsigned char is : resident) EXPECT_EQ(is & 1, 0);
  for (std::size_t i = 0; i < page; ++i) ASSERT_EQ(segment.control()[i], std::byte{0});
}

// A process that reads a truncated mapped file dies. Neither side can do that to the other.
TEST(ShmSegment, CannotBeResized) {
  const ShmSegment segment = ShmSegment::create(64U << 10);
  EXPECT_EQ(::ftruncate(segment.descriptor(), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(::ftruncate(segment.descriptor(), 1 << 30), -1);
  EXPECT_EQ(::fcntl(segment.descriptor(), F_ADD_SEALS, F_SEAL_WRITE), -1);
}

TEST(ShmSegment, RefusesUnsealedMemory) {
  const std::size_t size = page + (64U << 10);
  EXPECT_NO_THROW(ShmSegment::open(memory(size, sealed), most));
  EXPECT_NO_THROW(ShmSegment::open(memory(size, F_SEAL_SHRINK | F_SEAL_GROW), most));
  for (const int seals : {0, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_SEAL, F_SEAL_SHRINK | F_SEAL_SEAL})
    EXPECT_EQ(kind_of([&] { ShmSegment::open(memory(size, seals), most); }), ErrorKind::protocol_error);
}

TEST(ShmSegment, RefusesReadOnlyMemory) {
  const int seals = sealed | F_SEAL_WRITE;
  EXPECT_EQ(kind_of([&] { ShmSegment::open(memory(page + (64U << 10), seals), most); }),
            ErrorKind::protocol_error);
  Descriptor writable = memory(page + (64U << 10), sealed);
  Descriptor read_only(
      ::open(("/proc/self/fd/" + std::to_string(writable.get())).c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(kind_of([&] { ShmSegment::open(std::move(read_only), most); }), ErrorKind::protocol_error);
}

TEST(ShmSegment, RefusesOtherSizes) {
  for (const std::size_t size :
       {std::size_t{0}, std::size_t{1}, page, page + page, page + (64U << 10) - 1, page + (64U << 10) + 1,
        page + (96U << 10), std::size_t{64U << 10}, page + 2 * most, std::size_t{1} << 62})
    EXPECT_EQ(kind_of([&] { ShmSegment::open(memory(size, sealed), most); }), ErrorKind::protocol_error)
        << size;
  EXPECT_NO_THROW(ShmSegment::open(memory(page + most, sealed), most));
}

TEST(ShmSegment, RefusesOtherDescriptorsThanMemory) {
  std::array<int, 2> pipe{};
  ASSERT_EQ(::pipe2(pipe.data(), O_CLOEXEC), 0);
  Descriptor read_end(pipe[0]), write_end(pipe[1]);
  EXPECT_EQ(kind_of([&] { ShmSegment::open(std::move(read_end), most); }), ErrorKind::protocol_error);
  EXPECT_EQ(kind_of([&] { ShmSegment::open(Descriptor(::open("/dev/zero", O_RDWR | O_CLOEXEC)), most); }),
            ErrorKind::protocol_error);
  char name[] = "/tmp/weft-segment-XXXXXX";
  Descriptor file(::mkstemp(name));
  ::unlink(name);
  ASSERT_EQ(::ftruncate(file.get(), static_cast<off_t>(page + (64U << 10))), 0);
  EXPECT_EQ(kind_of([&] { ShmSegment::open(std::move(file), most); }), ErrorKind::protocol_error);
  EXPECT_EQ(kind_of([&] { ShmSegment::open(Descriptor(), most); }), ErrorKind::protocol_error);
}

TEST(ShmSegment, CapacitiesArePowersOfTwo) {
  EXPECT_EQ(ShmSegment::capacity_for(0), ShmSegment::smallest);
  EXPECT_EQ(ShmSegment::capacity_for(100'000), 128U << 10);
  EXPECT_EQ(ShmSegment::capacity_for(1U << 20), 1U << 20);
  EXPECT_EQ(ShmSegment::capacity_for(~std::size_t{0}), ShmSegment::largest);
  for (const std::size_t bad :
       {std::size_t{0}, std::size_t{4096}, std::size_t{100'000}, std::size_t{1} << 40})
    EXPECT_EQ(kind_of([&] { ShmSegment::create(bad); }), ErrorKind::invalid_argument);
}

TEST(ShmSegment, LeavesNothingBehind) {
  const test::Leaks before;
  {
    ShmSegment a = ShmSegment::create(64U << 10), b = ShmSegment::create(64U << 10);
    ShmSegment moved = std::move(a);
    b = std::move(moved);
    b.close_descriptor();
    EXPECT_GT(test::Leaks().mappings_of("weft-ring"), 0U);
    (void)test::error_of([] { ShmSegment::open(memory(page + (96U << 10), sealed), most); });
    (void)test::error_of([] { ShmSegment::open(memory(page + (64U << 10), sealed | F_SEAL_WRITE), most); });
  }
  before.expect_the_same();
}

TEST(ShmSegment, ReportsWhenThereAreNoDescriptorsLeft) {
  const Descriptor lowest(::dup(0));
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{static_cast<rlim_t>(lowest.get()), old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto kind = kind_of([] { ShmSegment::create(64U << 10); });
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_EQ(kind, ErrorKind::resource_exhausted);
}

}  // namespace
}  // namespace weft::rpc::segment_test

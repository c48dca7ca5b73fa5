#include <weft/rpc/transport/shm/peer_memory.h>

#include <weft/rpc/transport/shm/segment.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/pattern.h"
#include "tests/support/shm.h"

namespace weft::rpc::peer_memory_test {
namespace {

// This process is at both ends: it may read its own memory.
class PeerMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    const auto ends = test::socket_pair();
    here_.reset(ends[0]);
    there_.reset(ends[1]);
    memory_ = PeerMemory::of(here_.get());
    ASSERT_TRUE(memory_);
    nonce_ = PeerMemory::make_nonce();
    if (!memory_->proves(address(nonce_.data()), nonce_))
      GTEST_SKIP() << "this system lets no process read another's memory";
  }
  static std::uint64_t address(const void* at) { return reinterpret_cast<std::uintptr_t>(at); }
  std::error_code read(std::uint64_t from, std::span<std::byte> into) {
    std::error_code error;
    memory_->read(from, into, error);
    return error;
  }

  Descriptor here_, there_;
  std::optional<PeerMemory> memory_;
  PeerMemory::Nonce nonce_{};
};

// The same window of memory over and over, so that much address space costs little memory.
class Windows {
 public:
  static constexpr std::size_t window = 1U << 20;
  explicit Windows(std::size_t count) : size_(count * window) {
    void* reserved = ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<std::byte*>(reserved);
    for (std::size_t at = 0; at < size_; at += window)
      if (::mmap(base_ + at, window, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, pages_.descriptor(),
                 static_cast<off_t>(ShmSegment::page_size())) == MAP_FAILED)
        throw std::bad_alloc();
  }
  ~Windows() { ::munmap(base_, size_); }
  std::span<std::byte> bytes() const { return {base_, size_}; }

 private:
  const ShmSegment pages_ = ShmSegment::create(window);
  const std::size_t size_;
  std::byte* base_ = nullptr;
};

// Reads 300 MiB, which needs more than one system call.
TEST_F(PeerMemoryTest, ReadsMoreThanOneCallCan) {
  const Windows from(300), into(300);
  const test::Pattern pattern(1);
  const auto some = pattern.at(0, Windows::window / 8);
  std::memcpy(from.bytes().data(), some.data(), some.size());
  EXPECT_FALSE(read(address(from.bytes().data()), into.bytes()));
  EXPECT_TRUE(pattern.matches(0, into.bytes().last(Windows::window).first(some.size())));
}

TEST_F(PeerMemoryTest, UnmappedMemoryIsAnError) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* mapped = ::mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  std::memset(mapped, 1, 4 * page);
  ::munmap(static_cast<std::byte*>(mapped) + 2 * page, page);
  std::vector<std::byte> into(4 * page);
  const auto from = address(mapped);
  EXPECT_FALSE(read(from, std::span(into).first(2 * page)));
  EXPECT_EQ(read(from, std::span(into).first(2 * page + 1)), std::errc::bad_address);
  EXPECT_EQ(read(from + 2 * page, std::span(into).first(1)), std::errc::bad_address);
  for (const std::uint64_t nowhere :
       {std::uint64_t{0}, std::uint64_t{8}, ~std::uint64_t{0}, ~std::uint64_t{0} - page,
        std::uint64_t{0xffff888000000000}, std::uint64_t{1} << 62})
    EXPECT_TRUE(read(nowhere, std::span(into).first(100))) << nowhere;
  ::munmap(mapped, 2 * page);
  ::munmap(static_cast<std::byte*>(mapped) + 3 * page, page);
}

TEST_F(PeerMemoryTest, OnlyTheNonceProvesAPeer) {
  EXPECT_TRUE(memory_->proves(address(nonce_.data()), nonce_));
  PeerMemory::Nonce other = nonce_;
  other[15] ^= std::byte{1};
  EXPECT_FALSE(memory_->proves(address(other.data()), nonce_));
  EXPECT_FALSE(memory_->proves(0, nonce_));
  EXPECT_FALSE(memory_->proves(~std::uint64_t{0}, nonce_));
  EXPECT_NE(PeerMemory::make_nonce(), PeerMemory::make_nonce());
}

TEST_F(PeerMemoryTest, AnotherSocketThanAUnixSocketNamesNoProcess) {
  Descriptor file(::dup(0));
  EXPECT_FALSE(PeerMemory::of(file.get()));
  EXPECT_FALSE(peer_user(file.get()));
  EXPECT_FALSE(PeerMemory::of(-1));
}

}  // namespace
}  // namespace weft::rpc::peer_memory_test

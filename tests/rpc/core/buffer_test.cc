#include <weft/rpc/core/buffer.h>

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <new>

namespace weft::rpc::buffer_test {
namespace {

TEST(Buffer, IsAlignedForTensors) {
  for (const std::size_t size : {1U, 63U, 64U, 65U, 1000U}) {
    const Buffer buffer = Buffer::allocate(size);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % Buffer::alignment, 0U);
    EXPECT_EQ(buffer.size(), size);
    std::memset(buffer.data(), 1, size);
  }
}

TEST(Buffer, OfZeroBytesIsEmpty) {
  EXPECT_TRUE(Buffer::allocate(0).empty());
  EXPECT_TRUE(Buffer::copy({}).empty());
  EXPECT_EQ(Buffer().data(), nullptr);
}

TEST(Buffer, CopiesOfAHandleShareTheBytes) {
  const char text[] = "abc";
  const Buffer buffer = Buffer::copy(std::as_bytes(std::span(text)));
  const Buffer same = buffer;  // NOLINT: a copy is what is tested
  EXPECT_EQ(same.data(), buffer.data());
  EXPECT_NE(static_cast<const void*>(buffer.data()), text);
  EXPECT_STREQ(reinterpret_cast<const char*>(buffer.data()), "abc");
  EXPECT_EQ(buffer.owner().use_count(), 2);
}

TEST(Buffer, TooLargeAnAllocationThrowsBadAlloc) {
  EXPECT_THROW(Buffer::allocate(SIZE_MAX), std::bad_alloc);
  EXPECT_THROW(Buffer::allocate(SIZE_MAX - 63), std::bad_alloc);
  EXPECT_THROW(Buffer::allocate(SIZE_MAX / 2), std::bad_alloc);
}

}  // namespace
}  // namespace weft::rpc::buffer_test

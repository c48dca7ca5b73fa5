#include <weft/rpc/codec/packed.h>

#include "tests/support/errors.h"

namespace weft::rpc::packed_test {
namespace {

using test::kind_of;

template <class T>
T there_and_back(const T& value) {
  return unpack<T>(pack(value));
}

TEST(Packed, ValuesRoundTrip) {
  EXPECT_EQ(there_and_back(-7), -7);
  EXPECT_EQ(there_and_back(std::string("seven")), "seven");
  using Nested = std::map<std::string, std::vector<std::optional<double>>>;
  const Nested nested{{"a", {1.5, std::nullopt}}, {"", {}}};
  EXPECT_EQ(there_and_back(nested), nested);
}

// Larger ones are attachments of their frame.
TEST(Packed, BytesOfAnySizeRoundTrip) {
  for (const std::size_t size : {0, 1, 1024, 1025, 100'000}) {
    std::vector<Buffer> two{Buffer::allocate(size), Buffer::allocate(2000)};
    for (std::size_t i = 0; i < size; ++i) two[0].data()[i] = std::byte(i * 7);
    for (std::size_t i = 0; i < 2000; ++i) two[1].data()[i] = std::byte(i * 3);
    const auto back = there_and_back(two);
    ASSERT_EQ(back.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i)
      EXPECT_TRUE(std::ranges::equal(back[i].bytes(), two[i].bytes())) << size << " " << i;
  }
}

TEST(Packed, AnotherTypeIsAMismatch) {
  EXPECT_EQ(kind_of([] { return unpack<std::string>(pack(7)); }), ErrorKind::type_mismatch);
}

TEST(Packed, TruncatedAndChangedBytesAreRefused) {
  const Buffer whole = pack(std::vector<Buffer>{Buffer::copy(std::vector<std::byte>(5000)), Buffer()});
  using Back = std::vector<Buffer>;
  for (std::size_t size = 0; size < whole.size() - Buffer::alignment; ++size)
    EXPECT_EQ(kind_of([&] { return unpack<Back>(Buffer::copy(whole.bytes().first(size))).size(); }),
              ErrorKind::protocol_error)
        << size;
  const Buffer changed = Buffer::copy(whole.bytes());
  changed.data()[Prefix::size] ^= std::byte{1};
  EXPECT_EQ(kind_of([&] { return unpack<Back>(changed).size(); }), ErrorKind::protocol_error);
}

}  // namespace
}  // namespace weft::rpc::packed_test

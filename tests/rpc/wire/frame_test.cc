#include <weft/rpc/wire/frame.h>

#include <array>

#include "tests/support/errors.h"

namespace weft::rpc::frame_test {
namespace {

using test::kind_of;

using Bytes = std::array<std::byte, Prefix::size>;

Bytes encoded(const Prefix& prefix) {
  Bytes bytes{};
  encode(prefix, bytes);
  return bytes;
}

const Prefix example{FrameKind::request, frame_flags::notify, 0x01020304,
                     0xa1a2a3a4,         0x1112131415161718,  0x2120};

TEST(Prefix, HasTheDocumentedLayout) {
  const Bytes bytes = encoded(example);
  const unsigned char expected[] = {'W',  'E',  'F',  'T',  1,    2,    1,    0,    0x04, 0x03, 0x02,
                                    0x01, 0xa4, 0xa3, 0xa2, 0xa1, 0x18, 0x17, 0x16, 0x15, 0x14, 0x13,
                                    0x12, 0x11, 0x20, 0x21, 0,    0,    0,    0,    0,    0};
  for (std::size_t i = 0; i < Prefix::size; ++i) EXPECT_EQ(bytes[i], std::byte(expected[i])) << "byte " << i;
}

TEST(Prefix, RoundTrips) {
  Limits limits;
  limits.header = 0xffffffff;
  for (int kind = 1; kind <= 7; ++kind) {
    Prefix prefix = example;
    prefix.kind = static_cast<FrameKind>(kind);
    if (!prefix.carries_call()) {  // which have less room
      prefix.header_words = 0x0102;
      prefix.body_bytes = 0;
    }
    const Prefix again = decode(encoded(prefix), limits);
    EXPECT_EQ(again.kind, prefix.kind);
    EXPECT_EQ(again.flags, prefix.flags);
    EXPECT_EQ(again.header_words, prefix.header_words);
    EXPECT_EQ(again.checksum, prefix.checksum);
    EXPECT_EQ(again.call_id, prefix.call_id);
    EXPECT_EQ(again.body_bytes, prefix.body_bytes);
  }
}

TEST(Prefix, RefusesFramesOfOtherVersions) {
  Prefix good = example;
  good.header_words = 1;
  const auto with = [&](std::size_t offset, int value) {
    Bytes bytes = encoded(good);
    bytes[offset] = std::byte(value);
    return kind_of([&] { return decode(bytes, {}); });
  };
  EXPECT_EQ(with(0, 'W'), std::nullopt);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(with(i, 'x'), ErrorKind::protocol_error) << "magic " << i;
  EXPECT_EQ(with(4, 0), ErrorKind::protocol_error);
  EXPECT_EQ(with(4, 2), ErrorKind::protocol_error);
  EXPECT_EQ(with(5, 0), ErrorKind::protocol_error);
  EXPECT_EQ(with(5, 12), ErrorKind::protocol_error);
  EXPECT_EQ(with(6, 8), ErrorKind::protocol_error);
  EXPECT_EQ(with(7, 1), ErrorKind::protocol_error);
  EXPECT_EQ(with(8, 0), ErrorKind::protocol_error);  // no header
}

TEST(Prefix, RefusesSizesBeyondTheLimits) {
  Limits limits;
  limits.header = 80;
  limits.message = 1000;
  const auto with = [&](std::uint32_t words, std::uint64_t body) {
    Prefix prefix = example;
    prefix.header_words = words;
    prefix.body_bytes = body;
    return kind_of([&] { return decode(encoded(prefix), limits); });
  };
  EXPECT_EQ(with(10, 1000), std::nullopt);
  EXPECT_EQ(with(11, 1000), ErrorKind::resource_exhausted);
  EXPECT_EQ(with(0xffffffff, 0), ErrorKind::resource_exhausted);
  EXPECT_EQ(with(10, 1001), ErrorKind::resource_exhausted);
  EXPECT_EQ(with(10, ~std::uint64_t{0}), ErrorKind::resource_exhausted);
}

TEST(Prefix, TheChecksumCoversPrefixAndHeaderButNotItself) {
  std::array<std::byte, 16> header{};
  Bytes bytes = encoded(example);
  const auto whole = frame_checksum(bytes, header);
  for (std::size_t i = 0; i < Prefix::size; ++i) {
    Bytes other = bytes;
    other[i] ^= std::byte{1};
    EXPECT_EQ(frame_checksum(other, header) == whole, i >= 12 && i < 16) << "byte " << i;
  }
  for (auto& byte : header) {
    byte ^= std::byte{1};
    EXPECT_NE(frame_checksum(bytes, header), whole);
    byte ^= std::byte{1};
  }
}

TEST(Prefix, RefusesLargeFramesThatCarryNoCall) {
  const auto refused = [](FrameKind kind, std::uint32_t words, std::uint64_t body) {
    Prefix prefix = example;
    prefix.kind = kind;
    prefix.header_words = words;
    prefix.body_bytes = body;
    return test::message_of([&] { return decode(encoded(prefix), {}); });
  };
  constexpr std::uint32_t most = Prefix::max_control_header / 8;
  for (const FrameKind kind : {FrameKind::hello, FrameKind::cancel, FrameKind::goodbye, FrameKind::ping,
                               FrameKind::pong, FrameKind::credit, FrameKind::lane}) {
    EXPECT_EQ(refused(kind, most, 0), "(no error)");
    EXPECT_NE(refused(kind, most + 1, 0).find("16392 bytes"), std::string::npos);
    EXPECT_NE(refused(kind, 1, 64).find("64 bytes"), std::string::npos);
  }
  EXPECT_EQ(refused(FrameKind::request, most + 1, 64), "(no error)");
  const std::string text = refused(FrameKind::request, 1, std::uint64_t{1} << 40);
  EXPECT_NE(text.find("a body of 1099511627776 bytes"), std::string::npos) << text;
  EXPECT_NE(text.find("is 17179869184"), std::string::npos) << text;
}

}  // namespace
}  // namespace weft::rpc::frame_test

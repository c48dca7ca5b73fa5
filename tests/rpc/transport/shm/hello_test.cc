#include <weft/rpc/transport/shm/hello.h>

#include <weft/rpc/transport/shm/segment.h>

#include <cstring>

#include "tests/support/errors.h"

namespace weft::rpc::hello_test {
namespace {

using test::kind_of;

ShmHello some_hello() {
  ShmHello hello;
  hello.bulk = true;
  hello.capacity = 1U << 20;
  hello.bulk_begin = 64U << 10;
  hello.bulk_end = 4U << 20;
  hello.nonce = PeerMemory::make_nonce();
  return hello;
}

template <class T>
void set_at(ShmHello::Bytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

TEST(ShmHello, RoundTrips) {
  ShmHello hello = some_hello();
  EXPECT_EQ(ShmHello::decode(hello.encode()), hello);
  hello.bulk = false;
  hello.bulk_begin = 0;
  EXPECT_EQ(ShmHello::decode(hello.encode()), hello);
  for (const ShmAnswer answer : {ShmAnswer{ShmAnswer::proof, 0x123456789abcdef0},
                                 ShmAnswer{ShmAnswer::verdict, 1}, ShmAnswer{ShmAnswer::verdict, 0}})
    EXPECT_EQ(ShmAnswer::decode(answer.kind, answer.encode()), answer.value);
}

// The layout is part of the protocol, because different releases exchange hellos.
TEST(ShmHello, HasTheDocumentedLayout) {
  ShmHello hello = some_hello();
  for (std::size_t i = 0; i < hello.nonce.size(); ++i) hello.nonce[i] = std::byte(i + 1);
  const unsigned char expected[64] = {'w', 'e', 'f', 't', '-', 's', 'h', 'm',  //
                                      1,   0,   1,   0,   1,   0,   0,   0,    //
                                      0,   0,   16,  0,   0,   0,   0,   0,    //
                                      0,   0,   1,   0,   0,   0,   0,   0,    //
                                      1,   2,   3,   4,   5,   6,   7,   8,    //
                                      9,   10,  11,  12,  13,  14,  15,  16,   //
                                      0,   0,   64,  0,   0,   0,   0,   0};
  EXPECT_EQ(std::memcmp(hello.encode().data(), expected, sizeof expected), 0);
}

TEST(ShmHello, BulkHasTheSizesThatBothSidesAllow) {
  const auto agreed = [](ShmHello ours, ShmHello theirs) {
    EXPECT_EQ(ours.agreed_bulk(theirs), theirs.agreed_bulk(ours));
    return ours.agreed_bulk(theirs);
  };
  ShmHello ours = some_hello(), theirs = some_hello();
  theirs.bulk_begin = 100;
  theirs.bulk_end = 1U << 20;
  EXPECT_EQ(agreed(ours, theirs), (BulkRange{64U << 10, 1U << 20}));
  theirs.bulk_end = 0;  // from a version without an end
  EXPECT_EQ(agreed(ours, theirs), (BulkRange{64U << 10, BulkRange::no_end}));
}

TEST(ShmHello, ANewerHelloWithThisVersionIsUnderstood) {
  ShmHello::Bytes bytes = some_hello().encode();
  set_at<std::uint16_t>(bytes, 8, 7);
  set_at<std::uint32_t>(bytes, 12, 0xffffffff);          // flags of the newer version
  set_at<std::uint64_t>(bytes, 56, 0x0123456789abcdef);  // and its fields
  EXPECT_TRUE(ShmHello::decode(bytes).bulk);
}

TEST(ShmHello, RefusesInvalidFields) {
  const auto refused = [](std::size_t at, auto value) {
    ShmHello::Bytes bytes = some_hello().encode();
    set_at(bytes, at, value);
    EXPECT_EQ(kind_of([&] { (void)ShmHello::decode(bytes); }), ErrorKind::protocol_error) << at;
  };
  for (std::size_t i = 0; i < 8; ++i) refused(i, 'x');
  refused(8, std::uint16_t{0});   // its newest
  refused(10, std::uint16_t{2});  // its oldest
  for (const std::uint64_t capacity :
       {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{32U << 10}, std::uint64_t{(64U << 10) + 1},
        std::uint64_t{96U << 10}, std::uint64_t{1} << 31, std::uint64_t{1} << 63, ~std::uint64_t{0}})
    refused(16, capacity);
  refused(24, std::uint64_t{0});
  EXPECT_EQ(kind_of([] { (void)ShmHello::decode(ShmHello::Bytes{}); }), ErrorKind::protocol_error);
  const auto read_as = [](ShmAnswer::Kind kind, ShmAnswer answer) {
    return kind_of([&] { (void)ShmAnswer::decode(kind, answer.encode()); });
  };
  EXPECT_EQ(read_as(ShmAnswer::verdict, {ShmAnswer::verdict, 2}), ErrorKind::protocol_error);
  EXPECT_EQ(read_as(ShmAnswer::proof, {ShmAnswer::verdict, 1}), ErrorKind::protocol_error);
  EXPECT_EQ(read_as(ShmAnswer::verdict, {ShmAnswer::proof, 1}), ErrorKind::protocol_error);
}

}  // namespace
}  // namespace weft::rpc::hello_test

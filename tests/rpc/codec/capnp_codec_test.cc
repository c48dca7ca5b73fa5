#include <weft/rpc/codec/capnp_codec.h>

#include <tests/rpc/codec/order.capnp.h>

#include "tests/support/errors.h"
#include "tests/support/messages.h"

namespace weft::rpc::capnp_codec_test {
namespace {

using namespace test;
using test::schema::Order;
using test::schema::Receipt;

CapnpMessage<Order> example() {
  CapnpMessage<Order> order;
  order.builder().setSymbol("X");
  order.builder().setAmount(3);
  auto fills = order.builder().initFills(2);
  fills[0].setPrice(0.5);
  fills[1].setPrice(1.5);
  return order;
}

TEST(CapnpCodec, AMessageRoundTrips) {
  const auto again = test::travel(example());
  EXPECT_EQ(again.reader().getSymbol(), "X");
  EXPECT_EQ(again.reader().getAmount(), 3);
  ASSERT_EQ(again.reader().getFills().size(), 2U);
  EXPECT_EQ(again.reader().getFills()[1].getPrice(), 1.5);
}

TEST(CapnpCodec, MessagesNestInOtherTypes) {
  const auto again = test::travel(std::vector{example(), example()});
  EXPECT_EQ(again.at(1).reader().getAmount(), 3);
  EXPECT_EQ(type_text<std::vector<CapnpMessage<Order>>>(),
            "[capnp(" + std::to_string(capnp::typeId<Order>()) + ")]");
}

TEST(CapnpCodec, AnEmptyMessageRoundTrips) {
  EXPECT_EQ(test::travel(CapnpMessage<Receipt>()).reader().getNumber(), 0U);
}

TEST(CapnpCodec, TheReceivedMessageIsACopy) {
  auto order = example();
  const auto again = test::travel(order);
  order.builder().setAmount(4);
  EXPECT_EQ(again.reader().getAmount(), 3);
}

TEST(CapnpCodec, AnotherTypeIsRefused) {
  expect_error([] { return test::travel_as<CapnpMessage<Receipt>>(example()); }, ErrorKind::type_mismatch);
  EXPECT_EQ(test::kind_of([] { return test::travel_as<CapnpMessage<Receipt>>(1); }),
            ErrorKind::type_mismatch);
  EXPECT_EQ(test::kind_of([] { return test::travel_as<int>(example()); }), ErrorKind::type_mismatch);
}

}  // namespace
}  // namespace weft::rpc::capnp_codec_test

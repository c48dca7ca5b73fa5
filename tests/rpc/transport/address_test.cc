#include <weft/rpc/transport/address.h>

#include "tests/support/errors.h"

namespace weft::rpc::address_test {
namespace {

TEST(Address, RoundTripsItsText) {
  for (const char* text :
       {"tcp://127.0.0.1:80", "tcp://[::1]:65535", "tcp://some.host:0", "unix:///run/a.sock", "inproc://x"})
    EXPECT_EQ(Address::parse(text).text(), text);
  const Address v6 = Address::parse("tcp://[fe80::1%eth0]:7");
  EXPECT_EQ(v6.host, "fe80::1%eth0");
  EXPECT_EQ(v6.port, "7");
  EXPECT_EQ(Address::parse("unix:///a").path, "/a");
  EXPECT_TRUE(Address::looks_like("tcp://a:1"));
  EXPECT_FALSE(Address::looks_like("worker1"));
}

TEST(Address, RefusesMalformedTexts) {
  for (const char* text : {"",
                           "worker1",
                           "tcp://",
                           "tcp://host",
                           "tcp://host:",
                           "tcp://:80",
                           "tcp://host:65536",
                           "tcp://host:-1",
                           "tcp://host:+1",
                           "tcp://host:80x",
                           "tcp://::1:80",
                           "tcp://[::1:80",
                           "tcp://[]:80",
                           "tcp://@host:1",
                           "tcp://a@:1",
                           "udp://host:1",
                           "unix://",
                           "inproc://",
                           "self://x",
                           "://a:1"}) {
    test::expect_error([&] { return Address::parse(text); }, ErrorKind::invalid_argument,
                       "'" + std::string(text) + "'");
  }
}

TEST(Address, MayNameTheSubjectOfTheCertificate) {
  const Address address = Address::parse("tcp://markets.internal@[::1]:7443");
  EXPECT_EQ(address.certified, "markets.internal");
  EXPECT_EQ(address.host, "::1");
  EXPECT_EQ(address.text(), "tcp://markets.internal@[::1]:7443");
}

}  // namespace
}  // namespace weft::rpc::address_test

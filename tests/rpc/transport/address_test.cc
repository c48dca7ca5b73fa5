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

const std::string elsewhere = "192.0.2.1";  // reserved for documentation (RFC 5737)

TEST(LocalAddress, KnowsTheAddressesOfThisHost) {
  for (const char* own : {"127.0.0.1", "127.3.2.1", "::1"}) EXPECT_TRUE(is_own_address(own)) << own;
  for (const std::string& other : {elsewhere, std::string("2001:db8::1"), std::string("0.0.0.0"),
                                   std::string("::"), std::string("localhost"), std::string()})
    EXPECT_FALSE(is_own_address(other)) << other;
}

TEST(LocalAddress, AWildcardIsStatedAsTheAddressOfTheConnection) {
  const auto seen = [](const std::string& own, const std::optional<HostPair>& hosts) {
    const auto address = as_seen_by_peer(Address::parse(own), hosts);
    return address ? address->text() : "";
  };
  const HostPair v4{"10.0.0.1", "10.0.0.2"}, v6{"2001:db8::1", "2001:db8::2"}, one_host{};
  EXPECT_EQ(seen("tcp://10.1.1.1:7", v4), "tcp://10.1.1.1:7");
  EXPECT_EQ(seen("unix:///x", v4), "unix:///x");
  EXPECT_EQ(seen("tcp://0.0.0.0:7", v4), "tcp://10.0.0.1:7");
  EXPECT_EQ(seen("tcp://[::]:7", v4), "tcp://10.0.0.1:7");
  EXPECT_EQ(seen("tcp://[::]:7", v6), "tcp://[2001:db8::1]:7");
  EXPECT_EQ(seen("tcp://0.0.0.0:7", v6), "") << "this listener does not accept IPv6";
  EXPECT_EQ(seen("tcp://0.0.0.0:7", one_host), "tcp://127.0.0.1:7");
  EXPECT_EQ(seen("tcp://[::]:7", one_host), "tcp://[::1]:7");
  EXPECT_EQ(seen("tcp://0.0.0.0:7", std::nullopt), "");
}

TEST(LocalAddress, APeerMayStateOnlyAddressesOfItsHost) {
  const auto accepted = [](const std::string& stated, const std::optional<HostPair>& hosts) {
    return is_on_host_of_peer(Address::parse(stated), hosts);
  };
  const HostPair remote{"10.0.0.1", elsewhere}, over_loopback{"127.0.0.1", "127.0.0.1"}, one_host{};
  EXPECT_TRUE(accepted("tcp://" + elsewhere + ":7", remote));
  for (const char* other : {"tcp://192.0.2.2:7", "tcp://127.0.0.1:7", "tcp://0.0.0.0:7", "tcp://localhost:7",
                            "unix:///x", "shm:///x"})
    EXPECT_FALSE(accepted(other, remote)) << other;
  for (const auto& hosts : {over_loopback, one_host}) {
    for (const char* own :
         {"tcp://127.0.0.1:7", "tcp://127.0.0.2:7", "tcp://[::1]:7", "unix:///x", "shm:///x"})
      EXPECT_TRUE(accepted(own, hosts)) << own;
    EXPECT_FALSE(accepted("tcp://" + elsewhere + ":7", hosts));
    EXPECT_FALSE(accepted("tcp://0.0.0.0:7", hosts));
  }
  EXPECT_TRUE(accepted("inproc://a", std::nullopt));
  EXPECT_FALSE(accepted("tcp://127.0.0.1:7", std::nullopt));
}

}  // namespace
}  // namespace weft::rpc::address_test

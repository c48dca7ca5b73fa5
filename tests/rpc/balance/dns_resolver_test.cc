#include <weft/rpc/balance/dns_resolver.h>

#include <weft/rpc/testing/test_authority.h>

#include "tests/support/cluster.h"

namespace weft::rpc::dns_resolver_test {
namespace {

using namespace test;

std::string here() { return "here"; }
using Here = Function<"here", &here>;

TEST(DnsResolver, EachAddressOfAHostIsAReplica) {
  Cluster cluster({.tcp = true}, {"client", "server"});
  cluster["server"].serve<Here>();
  const Address address = Address::parse(cluster["server"].addresses().front());
  const PeerSet set(cluster["client"], dns_resolver(cluster["client"], "tcp://localhost:" + address.port));
  EXPECT_EQ(got(set.call<Here>()), "here");
  std::set<std::string> names;
  for (const auto& replica : set.replicas()) names.insert(replica.name);
  EXPECT_TRUE(names.contains("tcp://127.0.0.1:" + address.port)) << "as the system has it of localhost";
  for (const std::string& name : names) EXPECT_NE(Address::parse(name).host, "localhost");
}

TEST(DnsResolver, AnUnknownHostIsNoReplica) {
  Cluster cluster({}, {"client"});
  // Longer than the maximum length of a name: no server is asked.
  const auto resolve = dns_resolver(cluster["client"], "tcp://" + std::string(300, 'x') + ":1");
  EXPECT_EQ(kind_of([&] { got(resolve()); }), ErrorKind::unavailable);
  const PeerSet set(cluster["client"], resolve);
  EXPECT_EQ(kind_of([&] { got(set.call<Here>()); }), ErrorKind::unavailable);
}

TEST(DnsResolver, NeedsAnAddressWithAPort) {
  Cluster cluster({}, {"client"});
  for (const char* text : {"localhost", "tcp://localhost", "unix:///tmp/socket"})
    EXPECT_EQ(kind_of([&] { (void)dns_resolver(cluster["client"], text); }), ErrorKind::invalid_argument)
        << text;
}

TEST(DnsResolver, FailsAfterTheAgentHasEnded) {
  Cluster cluster({}, {"client"});
  const auto resolve = dns_resolver(cluster["client"], "tcp://localhost:1");
  cluster.end("client");
  EXPECT_EQ(kind_of([&] { got(resolve()); }), ErrorKind::shut_down);
}

// The certificate is issued for the host name, not for the resolved address.
TEST(DnsResolver, ReplicasProveTheNameOfTheHost) {
  const test::TestAuthority authority;
  const auto cluster_of = [&](const std::string& host) {
    test::TestAuthority::Request request;
    request.common_name = "server";
    request.uris = {"weft://server"};
    request.dns = {host};
    return std::make_unique<Cluster>(
        Cluster::Options{.tcp = true,
                         .adjust =
                             [&authority, request](AgentOptions& options) {
                               options.credentials = std::make_shared<Credentials>(
                                   options.name == "server" ? authority.credentials_for(request)
                                                            : authority.credentials(options.name));
                             }},
        std::vector<std::string>{"client", "server"});
  };
  for (const std::string host : {"localhost", "another.host"}) {
    auto cluster = cluster_of(host);
    Agent& client = (*cluster)["client"];
    (*cluster)["server"].serve<Here>();
    const std::string port = Address::parse((*cluster)["server"].addresses().front()).port;
    const PeerSet set(client, dns_resolver(client, "tcp://localhost:" + port));
    if (host == "localhost") {
      EXPECT_EQ(got(set.call<Here>()), "here");
    } else {
      const auto error = test::error_of([&] { got(set.call<Here>()); });
      ASSERT_TRUE(error);
    }
  }
}

}  // namespace
}  // namespace weft::rpc::dns_resolver_test

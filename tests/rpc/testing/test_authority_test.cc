#include <weft/rpc/testing/test_authority.h>

#include "tests/support/errors.h"
#include "tests/support/tls.h"

namespace weft::test::test_authority_test {
namespace {

using rpc::Credentials;

TEST(TestAuthority, OnlyItsOwnAgentsConnect) {
  const TestAuthority authority, stranger("stranger", TestAuthority::KeyKind::ed25519);
  const Credentials worker(authority.credentials("worker1")), server(authority.credentials("server")),
      outsider(stranger.credentials("worker1"));
  for (const std::string host : {"server", "localhost", "127.0.0.1", "::1"})
    EXPECT_TRUE(TlsPair(worker, server, {.host = host, .agent = "server"}).run().met()) << host;
  EXPECT_FALSE(TlsPair(outsider, server).run().met());
}

TEST(TestAuthority, TheCertificateHasTheRequestedFields) {
  const TestAuthority authority;
  const Credentials own(authority.credentials_for({.uris = {"weft://a,b"}, .ends = std::chrono::hours{5}}));
  EXPECT_EQ(own.describe().substr(0, 23), "certificate 'a,b' until");
  EXPECT_GT(*own.expires(), std::chrono::system_clock::now() + std::chrono::hours{4});
  EXPECT_EQ(kind_of([&] { return authority.issue({.addresses = {"no address"}}); }),
            rpc::ErrorKind::internal);
  EXPECT_NE(authority.issue(TestAuthority::agent("x")).key, authority.issue(TestAuthority::agent("x")).key);
}

}  // namespace
}  // namespace weft::test::test_authority_test

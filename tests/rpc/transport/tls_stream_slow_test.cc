// Runs many handshakes, so that small leaks add up. Under AddressSanitizer a leak in any of them fails the
// test.
#include <gtest/gtest.h>

#include <sys/resource.h>

#include "tests/support/sanitizer.h"
#include "tests/support/tls.h"

namespace weft::test::tls_stream_slow_test {
namespace {

constexpr int handshakes = sanitized ? 1'000 : 10'000;  // ASan finds a leak in one

long resident_kib() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_maxrss;
}

TEST(TlsStreamSlow, ThousandsOfHandshakesLeaveNothingBehind) {
  const TestAuthority authority, stranger("stranger");
  rpc::Credentials server(authority.credentials("server")), client(authority.credentials("worker1"));
  const rpc::Credentials secret(secret_options("job7", "a secret of the whole job")),
      other(secret_options("job7", "not the secret of the job")), foreign(stranger.credentials("worker1"));
  long before = 0;
  for (int i = 0; i < handshakes; ++i) {
    if (i % 100 == 0) server.reload();
    switch (i % 5) {
      case 0:
      case 1:
        ASSERT_TRUE(TlsPair(client, server).run().met());
        break;
      case 2:
        ASSERT_TRUE(TlsPair(secret, secret).run().met());
        break;
      case 3:
        ASSERT_FALSE(TlsPair(foreign, server).run().met());
        break;
      case 4:
        ASSERT_FALSE(TlsPair(other, secret).run().met());
        break;
    }
    if (i == 2000) before = resident_kib();
  }
  if (!sanitized) {
    EXPECT_LT(resident_kib() - before, 4096);  // half a KiB a handshake would be more
  }
}

}  // namespace
}  // namespace weft::test::tls_stream_slow_test

#include <weft/parallel/collectives/nccl/launch_agreement.h>

#include <gtest/gtest.h>

#include <random>

#include "tests/support/errors.h"

namespace weft::collectives::nccl::testing {
namespace launch_agreement_test {

using Keys = std::vector<LaunchKey>;

void PrintTo(const LaunchKey& key, std::ostream* out) { *out << key.communicator << ":" << key.sequence; }

TEST(LaunchAgreement, ReleasesWhatAllMembersAreReadyFor) {
  LaunchAgreement agreement;
  agreement.add(1, 2);
  agreement.add(2, 2);
  EXPECT_EQ(agreement.ready({1, 0}, 0), Keys{});
  EXPECT_EQ(agreement.ready({2, 0}, 1), Keys{});
  EXPECT_EQ(agreement.waiting(), 2U);
  EXPECT_EQ(agreement.ready({2, 0}, 0), (Keys{{2, 0}}));
  EXPECT_EQ(agreement.ready({1, 0}, 1), (Keys{{1, 0}}));
  EXPECT_EQ(agreement.waiting(), 0U);
}

TEST(LaunchAgreement, EachCommunicatorsLaunchesAreReleasedByTheirNumbers) {
  LaunchAgreement agreement;
  agreement.add(1, 1);
  EXPECT_EQ(agreement.ready({1, 1}, 0), Keys{});
  EXPECT_EQ(agreement.ready({1, 2}, 0), Keys{});
  EXPECT_EQ(agreement.ready({1, 0}, 0), (Keys{{1, 0}, {1, 1}, {1, 2}}));
}

TEST(LaunchAgreement, WhatIsSaidTwiceOrByNoMember) {
  LaunchAgreement agreement;
  agreement.add(1, 2);
  EXPECT_EQ(test::kind_of([&] {
              agreement.add(1, 3);
              return 0;
            }),
            rpc::ErrorKind::already_exists);
  (void)agreement.ready({1, 0}, 0);
  EXPECT_EQ(test::kind_of([&] { return agreement.ready({1, 0}, 0); }), rpc::ErrorKind::protocol_error);
  EXPECT_EQ(test::kind_of([&] { return agreement.ready({1, 0}, 2); }), rpc::ErrorKind::protocol_error);
  (void)agreement.ready({1, 0}, 1);
  EXPECT_EQ(test::kind_of([&] { return agreement.ready({1, 0}, 1); }), rpc::ErrorKind::protocol_error);
}

TEST(LaunchAgreement, NothingOfOneThatHasEnded) {
  LaunchAgreement agreement;
  agreement.add(1, 2);
  (void)agreement.ready({1, 0}, 0);
  agreement.remove(1);
  EXPECT_EQ(agreement.ready({1, 0}, 1), Keys{});
  EXPECT_EQ(agreement.waiting(), 0U);
}

// Threads of every member, one a communicator, each of which waits for its launch before it is ready for the
// next: whatever comes first where, all that can be released is, and nobody waits for ever.
TEST(LaunchAgreement, RandomThreads) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    LaunchAgreement agreement;
    std::vector<std::vector<std::uint64_t>> next(
        4, std::vector<std::uint64_t>(3, 0));  // by member, communicator
    std::vector<std::vector<bool>> waits(4, std::vector<bool>(3, false));
    for (std::uint64_t c = 0; c < 3; ++c) agreement.add(c, 4);
    std::size_t released = 0;
    std::vector<std::pair<std::size_t, std::size_t>> free;
    for (;;) {
      free.clear();
      for (std::size_t m = 0; m < 4; ++m)
        for (std::size_t c = 0; c < 3; ++c)
          if (!waits[m][c] && next[m][c] < 5) free.emplace_back(m, c);
      if (free.empty()) break;
      const auto [member, comm] = free[random() % free.size()];
      waits[member][comm] = true;
      for (const LaunchKey& key : agreement.ready({comm, next[member][comm]++}, static_cast<int>(member))) {
        ++released;
        for (auto& one : waits) one[key.communicator] = false;
      }
    }
    EXPECT_EQ(released, 15U) << "seed " << seed;
  }
}

}  // namespace launch_agreement_test
}  // namespace weft::collectives::nccl::testing

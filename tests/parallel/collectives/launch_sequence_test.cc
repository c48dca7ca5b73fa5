#include <weft/parallel/collectives/internal/group/launch_sequence.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::collectives::testing {
namespace launch_sequence_test {

class Sequence : public ::testing::Test {
 protected:
  LaunchSequence::Begin noting(int launch) {
    return [this, launch](rpc::Result<void> ready) { (ready.ok() ? begun : failed).push_back(launch); };
  }
  std::vector<int> ready(std::uint64_t number) {
    begun.clear();
    for (LaunchSequence::Begin& begin : sequence.ready(number, noting(static_cast<int>(number)))) begin({});
    return begun;
  }
  LaunchSequence sequence;
  std::vector<int> begun, failed;
};

TEST_F(Sequence, StartsLaunchesByNumber) {
  EXPECT_EQ(ready(2), std::vector<int>{});
  EXPECT_EQ(ready(1), std::vector<int>{});
  EXPECT_EQ(ready(0), (std::vector{0, 1, 2}));
  EXPECT_EQ(ready(3), std::vector{3});
}

TEST_F(Sequence, ReturnsTheLaunchesThatCannotStart) {
  EXPECT_EQ(ready(0), std::vector{0});
  EXPECT_EQ(ready(3), std::vector<int>{});
  EXPECT_EQ(ready(2), std::vector<int>{});
  for (LaunchSequence::Begin& begin : sequence.take_all())
    begin(std::make_exception_ptr(rpc::Error(rpc::ErrorKind::peer_lost, "rank 1 was lost")));
  EXPECT_EQ(failed, (std::vector{2, 3}));
  EXPECT_TRUE(sequence.take_all().empty());
}

}  // namespace launch_sequence_test
}  // namespace weft::collectives::testing

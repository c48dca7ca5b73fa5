#include <weft/dist_autograd/internal/participant.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::dist_autograd::participant_test {
namespace {

using rpc::ErrorKind;
using weft::test::error_of;

const PassId pass{0x1234567800000000, 7};
const rpc::AgentId worker{"worker1", 5};

template <class Failure>
rpc::Future<int> failed(Failure failure) {
  return of_participant(pass, worker, rpc::Future<int>::made(std::make_exception_ptr(failure)));
}

rpc::Error ended_with(rpc::Future<int> future) {
  return *error_of([&] { return future.get(); });
}

TEST(Participant, ThatIsUnreachableIsLost) {
  const auto error = ended_with(failed(rpc::Error(ErrorKind::unavailable, "no agent listens there")));
  EXPECT_EQ(error.kind(), ErrorKind::peer_lost);
  EXPECT_STREQ(error.what(), "pass 12345678:7: worker1 took part and is gone: no agent listens there");
}

TEST(Participant, ErrorsOfItsRepliesAreKept) {
  const auto error =
      ended_with(failed(rpc::RemoteError(ErrorKind::unavailable, "no disk", "worker1", "service.start", "")));
  EXPECT_EQ(error.kind(), ErrorKind::unavailable);
}

TEST(Participant, OtherErrorsAreKept) {
  const auto error = ended_with(failed(rpc::Error(ErrorKind::deadline_exceeded, "late")));
  EXPECT_EQ(error.kind(), ErrorKind::deadline_exceeded);
  auto foreign = failed(std::out_of_range("foreign"));
  EXPECT_THROW(foreign.get(), std::out_of_range);
  EXPECT_EQ(of_participant(pass, worker, rpc::Future<int>::made(3)).get(), 3);
}

}  // namespace
}  // namespace weft::dist_autograd::participant_test

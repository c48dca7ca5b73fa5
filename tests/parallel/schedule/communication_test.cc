#include <weft/parallel/schedule/communication.h>

#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/schedule/validate.h>
#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <algorithm>

namespace weft::schedule::testing {
namespace communication_test {

std::size_t count(const std::vector<Action>& actions, Op op) {
  return static_cast<std::size_t>(
      std::count_if(actions.begin(), actions.end(), [op](const Action& action) { return action.op == op; }));
}

TEST(Communication, ASendFollowsItsComputationAndTheReceiverIsReady) {
  EXPECT_EQ(save(place_communication(load("0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n"))),
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1\n");
}

TEST(Communication, AValueThatStaysOnItsRankIsNotSent) {
  // The V of two ranks: stages 1 and 2 are on rank 1.
  EXPECT_EQ(save(place_communication(load("0F0,3F0\n1F0,2F0\n"))),
            "0F0,0SEND_F0,3RECV_F0,3F0\n1RECV_F0,1F0,2F0,2SEND_F0\n");
}

TEST(Communication, SkipConnectionsAreSentAlongTheirEdges) {
  Schedule schedule = one_forward_one_backward({4, 6});
  schedule.edges = {{0, 1}, {0, 3}, {1, 2}, {1, 3}, {2, 3}};
  const Schedule placed = place_communication(schedule);
  prove_message_order(placed);
  EXPECT_EQ(count(placed.ranks[0], Op::send_activation), 12u);
  EXPECT_EQ(count(placed.ranks[3], Op::receive_activation), 18u);
  EXPECT_EQ(count(placed.ranks[3], Op::send_gradient), 18u);
  EXPECT_EQ(count(placed.ranks[0], Op::receive_gradient), 12u);
}

TEST(Communication, ReplicasExchangeMessagesWithTheRankOfTheMicroBatch) {
  const Schedule placed = place_communication(load("0F0,0F2\n0F1\n1F0\n1F1\n1F2\n"));
  EXPECT_EQ(save(placed),
            "0F0,0SEND_F0,0F2,0SEND_F2\n0F1,0SEND_F1\n1RECV_F0,1F0\n1RECV_F1,1F1\n1RECV_F2,1F2\n");
}

TEST(Communication, OverlappedPairsSendBothValues) {
  const Schedule placed = place_communication(dual_pipe_v({2, 6}));
  prove_message_order(placed);
  EXPECT_NE(save(placed).find("(0F3;3B1)OVERLAP_F_B,0SEND_F3,3SEND_B1"), std::string::npos) << save(placed);
}

TEST(Communication, RefusesAScheduleWithMessagesAndADeadlock) {
  const Schedule placed = place_communication(one_forward_one_backward({2, 2}));
  EXPECT_THROW(place_communication(placed), rpc::Error);
  EXPECT_THROW(place_communication(load("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n")), rpc::Error);
}

// --- Waits ---

TEST(Communication, WaitsBoundTheSendsInFlight) {
  const Schedule placed = place_communication(load("0F0,0F1,0F2\n1F0,1F1,1F2\n"));
  EXPECT_EQ(save(place_waits(placed, 1)),
            "0F0,0SEND_F0,0F1,0WAIT_SEND_F0,0SEND_F1,0F2,0WAIT_SEND_F1,0SEND_F2,0WAIT_SEND_F2\n"
            "1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2\n");
  EXPECT_EQ(save(place_waits(placed, 2)),
            "0F0,0SEND_F0,0F1,0SEND_F1,0F2,0WAIT_SEND_F0,0SEND_F2,0WAIT_SEND_F1,0WAIT_SEND_F2\n"
            "1RECV_F0,1F0,1RECV_F1,1F1,1RECV_F2,1F2\n");
  EXPECT_THROW(place_waits(placed, 0), rpc::Error);
  EXPECT_THROW(place_waits(place_waits(placed)), rpc::Error);
}

TEST(Communication, WaitsLeaveEveryScheduleFreeOfDeadlock) {
  for (const Generator& generator : generators())
    for (int p = 1; p <= 6; ++p)
      for (const int m : {1, 3, 2 * p, 13}) {
        const Schedule waits = place_waits(place_communication(generator.make({p, m})), 1);
        EXPECT_NO_THROW(prove_message_order(waits)) << generator.name << ' ' << p << ' ' << m;
        for (const std::vector<Action>& actions : waits.ranks)
          EXPECT_EQ(count(actions, Op::wait_send_activation) + count(actions, Op::wait_send_gradient),
                    count(actions, Op::send_activation) + count(actions, Op::send_gradient));
      }
}

}  // namespace communication_test
}  // namespace weft::schedule::testing

// Messages between two ranks of a group: order, tags, differences, ends.
#include <weft/rpc/agent/calls_in_flight.h>

#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_messages_test {

class GroupMessages : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupMessages, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(GroupMessages, MessagesAreReceivedInTheOrderInWhichTheyWereSent) {
  for (const bool receive_first : {false, true}) {
    Futures sent, received;
    Tensors tensors;
    const auto send = [&] {
      for (int i = 0; i < 5; ++i) sent.push_back(groups[0].send(values(i, {3, 2}), 2));
    };
    const auto receive = [&] {
      for (int i = 0; i < 5; ++i)
        received.push_back(groups[2].recv(tensors.emplace_back(at::zeros({3, 2})), 0));
    };
    receive_first ? receive() : send();
    receive_first ? send() : receive();
    for (auto* futures : {&sent, &received})
      for (auto& future : *futures) got(std::move(future));
    for (int i = 0; i < 5; ++i) expect_equal(tensors[i], values(i, {3, 2}));
  }
}

TEST_P(GroupMessages, MessagesAreDistinguishedByTagAndSender) {
  const at::Tensor a = at::zeros({2}), b = at::zeros({2}), c = at::zeros({2}), own = at::zeros({2});
  Futures all;
  all.push_back(groups[2].recv(a, 0, 7));
  all.push_back(groups[2].recv(b, 1));
  all.push_back(groups[2].recv(c, 0));
  all.push_back(groups[2].recv(own, 2));
  all.push_back(groups[0].send(values(10, {2}), 2));
  all.push_back(groups[0].send(values(20, {2}), 2, 7));
  all.push_back(groups[1].send(values(30, {2}), 2));
  all.push_back(groups[2].send(values(40, {2}), 2));
  for (auto& future : all) got(std::move(future));
  expect_equal(a, values(20, {2}));
  expect_equal(b, values(30, {2}));
  expect_equal(c, values(10, {2}));
  expect_equal(own, values(40, {2}));
}

// Large tensors of Group::empty are read where they lie, if the receiver can reach that memory.
TEST_P(GroupMessages, TensorsOfSharedMemoryArriveInOrderAndBelongToTheReceiver) {
  constexpr std::int64_t n = 100'000;
  for (const int to : {0, 1, 2}) {
    const at::Tensor large = groups[0].empty({n}), part = groups[0].empty({2, n}).select(0, 1);
    large.copy_(values(1, {n}));
    part.copy_(values(2, {n}));
    Futures sent;
    const auto before = company.agent(0).counts().bytes_sent;
    sent.push_back(groups[0].send(large, to));
    sent.push_back(groups[0].send(values(3, {2}), to));
    sent.push_back(groups[0].send(part, to));
    sent.push_back(groups[0].send(part.slice(0, 0, n, 2), to));  // with gaps
    const at::Tensor first = at::zeros({n}), small = at::zeros({2}), gaps = at::zeros({n / 2});
    got(groups[to].recv(first, 0));
    got(groups[to].recv(small, 0));
    const at::Tensor any = got(groups[to].recv_tensor(0));
    got(groups[to].recv(gaps, 0));
    for (auto& future : sent) got(std::move(future));
    if (GetParam() == Backend::memory) {
      EXPECT_LT(company.agent(0).counts().bytes_sent - before, large.nbytes());
    }
    large.zero_();
    part.zero_();
    expect_equal(first, values(1, {n}));
    expect_equal(small, values(3, {2}));
    expect_equal(any, values(2, {n}));
    expect_equal(gaps, values(2, {n}).slice(0, 0, n, 2));
  }
}

// A message that is not received is a call in flight: the limits of the receiver's connections bound how many
// it keeps, and further messages wait at the sender.
TEST(UnreceivedMessages, AreBoundedByTheLimitsOfTheReceiver) {
  constexpr int kept = 8, count = 20;
  Company company(2, Backend::messages, std::make_unique<test::InProcessJobStore>(), nullptr,
                  [](rpc::AgentOptions& options) { options.limits.calls = kept; });
  const auto groups = company.groups();
  Futures sent;
  for (int i = 0; i < count; ++i) sent.push_back(groups[0].send(values(i, {3}), 1));
  const auto served = [&] { return rpc::calls_in_flight(company.agent(1).core(), 10s).served.size(); };
  test::eventually("rank 1 keeps as many as it permits", [&] { return served() == kept; });
  const auto held = rpc::calls_in_flight(company.agent(0).core(), 10s).made;
  EXPECT_EQ(std::count_if(held.begin(), held.end(),
                          [](const rpc::MadeCall& call) { return call.state == rpc::made_held; }),
            count - kept);
  for (int i = 0; i < count; ++i) {
    const at::Tensor received = at::zeros({3});
    got(groups[1].recv(received, 0));
    expect_equal(received, values(i, {3}));
  }
  for (auto& future : sent) got(std::move(future));
}

// The other side does not wait for a message that is refused.
TEST_P(GroupMessages, ARefusalReachesTheOtherSide) {
  const at::Tensor expanded = at::zeros({1}).expand({4}), sparse = at::ones({4}).to_sparse();
  auto sent = groups[0].send(at::zeros({4}), 1), received = groups[1].recv(expanded, 0);
  test::expect_error(std::move(received), ErrorKind::invalid_argument, "expanded");
  test::expect_error(std::move(sent), ErrorKind::invalid_argument, "expanded", "refused");
  sent = groups[0].send(sparse, 1), received = groups[1].recv(at::zeros({4}), 0);
  test::expect_error(std::move(sent), ErrorKind::unsupported, "sparse");
  test::expect_error(std::move(received), ErrorKind::invalid_argument, "sparse", "refused");
}

// Each rank sends to its right neighbour. The order within a batch does not matter, so a ring of ranks does
// not deadlock.
TEST_P(GroupMessages, ABatchMayBeInAnyOrder) {
  Futures done;
  Tensors taken;
  for (int rank = 0; rank < ranks; ++rank) {
    taken.push_back(at::zeros({4}));
    const PointToPoint out{PointToPoint::Kind::send, values(rank, {4}), (rank + 1) % ranks},
        in{PointToPoint::Kind::recv, taken.back(), (rank + ranks - 1) % ranks};
    done.push_back(groups[rank].batch(rank == 1 ? std::vector{in, out} : std::vector{out, in}));
  }
  for (auto& future : done) got(std::move(future));
  for (int rank = 0; rank < ranks; ++rank) expect_equal(taken[rank], values((rank + ranks - 1) % ranks, {4}));
}

TEST_P(GroupMessages, AReceiveMayAcceptAnySender) {
  const at::Tensor first = at::zeros({100, 100}), second = at::zeros({100, 100}).t();
  auto one = groups[0].send(values(5, {100, 100}), 1);
  const int sender = got(groups[1].recv_any(first));
  EXPECT_EQ(sender, 0);
  got(std::move(one));
  auto any = groups[1].recv_any(second);
  got(groups[2].send(values(6, {100, 100}), 1));
  EXPECT_EQ(got(std::move(any)), 2);
  expect_equal(first, values(5, {100, 100}));
  expect_equal(second, values(6, {100, 100}));
}

TEST_P(GroupMessages, ATensorOfUnknownShapeHasTheShapeOfTheSender) {
  const Tensors sent{values(1, {3, 2}),           values(2, {5}, at::kLong), values(3, {}),
                     at::zeros({4, 0}, at::kInt), values(4, {70'001}),       values(5, {4, 3}).t()};
  for (const bool receive_first : {false, true}) {
    Futures sends;
    std::vector<rpc::Future<at::Tensor>> received;
    const auto send = [&] {
      for (const at::Tensor& tensor : sent) sends.push_back(groups[0].send(tensor, 2, 9));
    };
    const auto receive = [&] {
      for (std::size_t i = 0; i < sent.size(); ++i) received.push_back(groups[2].recv_tensor(0, 9));
    };
    receive_first ? receive() : send();
    receive_first ? send() : receive();
    for (std::size_t i = 0; i < sent.size(); ++i) {
      const at::Tensor tensor = got(std::move(received[i]));
      EXPECT_EQ(tensor.scalar_type(), sent[i].scalar_type());
      EXPECT_EQ(tensor.sizes(), sent[i].sizes());
      expect_equal(tensor, sent[i]);
    }
    for (auto& future : sends) got(std::move(future));
  }
}

// Receives with and without a known shape share one order and one space of tags.
TEST_P(GroupMessages, ReceivesOfKnownAndUnknownShapeShareOneOrder) {
  const at::Tensor first = at::zeros({2}), third = at::zeros({3});
  Futures all;
  all.push_back(groups[2].recv(first, 0));
  auto second = groups[2].recv_tensor(0), other = groups[2].recv_tensor(0, 7);
  all.push_back(groups[2].recv(third, 0));
  all.push_back(groups[0].send(values(40, {4}), 2, 7));
  all.push_back(groups[0].send(values(10, {2}), 2));
  all.push_back(groups[0].send(values(20, {2, 2}, at::kLong), 2));
  all.push_back(groups[0].send(values(30, {3}), 2));
  for (auto& future : all) got(std::move(future));
  expect_equal(first, values(10, {2}));
  expect_equal(got(std::move(second)), values(20, {2, 2}, at::kLong));
  expect_equal(third, values(30, {3}));
  expect_equal(got(std::move(other)), values(40, {4}));
}

TEST_P(GroupMessages, AnObjectIsNoTensorOfUnknownShape) {
  auto sent = groups[0].send_object(std::string("text"), 1);
  auto received = groups[1].recv_tensor(0);
  const std::string words = "to rank 1 (worker1), whose recv(any tensor, from 0) at group_messages_test.cc:";
  test::expect_error(std::move(sent), ErrorKind::invalid_argument, words);
  test::expect_error(std::move(received), ErrorKind::invalid_argument, words);
  test::expect_error(groups[0].recv_tensor(ranks), ErrorKind::invalid_argument, "of a group of");
  together(groups, [](const Group& group) { return group.barrier(); });
}

TEST_P(GroupMessages, AMissingSendFailsTheGroup) {
  auto received = groups[0].recv_tensor(1, 3, 50ms);
  test::expect_error(std::move(received), ErrorKind::deadline_exceeded,
                     "rank 0 (worker0): recv(any tensor, from 1) at group_messages_test.cc:");
  const auto others = company.groups();
  auto lost = others[0].recv_tensor(2);
  company.end(2);
  test::expect_error(std::move(lost), ErrorKind::peer_lost, "rank 2 (worker2)");
}

TEST_P(GroupMessages, ASendCompletesWhenItIsReceived) {
  auto sent = groups[0].send(at::zeros({4}), 1);
  together(groups, [](const Group& group) { return group.barrier(); });  // rank 1 has got the message
  EXPECT_FALSE(sent.ready());
  got(groups[1].recv(at::zeros({4}), 0));
  got(std::move(sent));
}

TEST_P(GroupMessages, MessagesThatDifferFailOnlyOnTheirTwoRanks) {
  auto sent = groups[0].send(at::zeros({4}), 1);
  auto received = groups[1].recv(at::zeros({4}, at::kLong), 0);
  for (auto* future : {&sent, &received})
    test::expect_error(std::move(*future), ErrorKind::invalid_argument,
                       "rank 0 sent float32[4] to rank 1 (worker1), whose recv(int64[4], from 0) at "
                       "group_messages_test.cc:");
  together(groups, [](const Group& group) { return group.barrier(); });
  const std::string count = std::to_string(ranks);
  test::expect_error(groups[0].send(at::zeros({4}), ranks), ErrorKind::invalid_argument,
                     "rank " + count + " of a group of " + count);
  test::expect_error(groups[0].recv(at::zeros({1}).expand({4}), 1), ErrorKind::invalid_argument, "expanded");
}

TEST_P(GroupMessages, UnmatchedMessagesFailTheGroup) {
  const auto others = company.groups();
  expect_all(Several{groups[0].send(at::zeros({4}), 1, 3, 50ms), groups[2].barrier()},
             ErrorKind::deadline_exceeded,
             {"rank 0 (worker0): send(float32[4], to 1) at group_messages_test.cc:"});
  expect_all(Several{others[0].recv(at::zeros({4}), 1, 3, 50ms), others[2].send(at::zeros({4}), 1)},
             ErrorKind::deadline_exceeded, {"rank 0 (worker0): recv(float32[4], from 1)"});
}

TEST_P(GroupMessages, MessagesFailWithTheLossOfTheOtherRank) {
  const auto others = company.groups();
  Futures futures;
  futures.push_back(groups[0].recv(at::zeros({4}), 2));
  futures.push_back(groups[1].send(at::zeros({4}), 2));
  auto to_leaver = others[0].recv(at::zeros({4}), 2);
  got(company.agent(2).leave());
  test::expect_error(std::move(to_leaver), ErrorKind::shut_down, "rank 2 (worker2)");
  expect_all(std::move(futures), ErrorKind::shut_down, {"rank 2 (worker2)"});
}

TEST_P(GroupMessages, ASendFailsWhenItsReceiverLeavesWithoutReceiving) {
  Futures sent;
  sent.push_back(groups[0].send(at::zeros({4}), 2));
  got(company.agent(2).leave());
  expect_all(std::move(sent), ErrorKind::shut_down, {"rank 2 (worker2)"});
}

// The notification that a member has left may overtake its answers.
TEST_P(GroupMessages, ASendSucceedsIfItsReceiverHasReceivedItAndLeft) {
  auto sent = groups[0].send(values(1, {4}), 2);
  auto& failure = CollectivesLayer::of(*company.agent(0).core())->all().front()->failure();
  failure.left(2, 0);
  failure.peer_gone(company.agent(2).id(), rpc::Error(ErrorKind::peer_lost, "its agent has ended"));
  const at::Tensor received = at::zeros({4});
  got(groups[2].recv(received, 0));
  expect_equal(received, values(1, {4}));
  got(std::move(sent));
}

}  // namespace group_messages_test
}  // namespace weft::collectives::testing

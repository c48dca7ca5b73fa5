#include <weft/parallel/collectives/nccl/internal/communicator.h>

#include <weft/rpc/core/asio_loop.h>

#include <thread>

#include "tests/parallel/collectives/nccl/ranks.h"

namespace weft::collectives::nccl::testing {
namespace communicator_test {

class NcclCommunicator : public Ranks {};

using Kinds = std::vector<ErrorKind>;

TEST_F(NcclCommunicator, RanksConnectAndReduce) {
  make(3);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(comms[std::size_t(rank)]->rank(), rank);
    EXPECT_EQ(comms[std::size_t(rank)]->size(), 3);
  }
  expect_works(comms);
  EXPECT_EQ(nccl.calls(1), std::vector<std::string>{"all_reduce 2"});
  settle();
  EXPECT_EQ(loop->timers(), 0U);  // no watch is active when no work is in flight
}

// --- Making ---

TEST_F(NcclCommunicator, ADeadlineFailsTheCreation) {
  nccl.faults(1).init_hangs = true;
  auto making = begin(2);
  EXPECT_EQ(kind_of([&] { return got(making[1]); }), ErrorKind::deadline_exceeded);
  comms.push_back(got(making[0]));
  EXPECT_EQ(nccl.alive(), 1U);  // the communicator that was being created has been aborted
}

TEST_F(NcclCommunicator, CreationIsCancelledWithoutItsLoop) {  // the loop may have ended
  auto making = Communicator::create(device(0), Communicator::unique_id(*api()), 2, 0, options(0));
  background->turn();
  EXPECT_EQ(nccl.alive(), 1U);
  making.cancel();
  background->turn();
  ASSERT_TRUE(making.ready());
  EXPECT_EQ(kind_of([&] { return making.get(); }), ErrorKind::cancelled);
  EXPECT_EQ(nccl.alive(), 0U);
}

TEST_F(NcclCommunicator, CreationThatItsLoopDropsIsAborted) {
  const auto ends = std::make_shared<rpc::AsioLoop>();
  Device there = device(0);
  there.watch = std::make_shared<Watch>(ends);
  auto making = Communicator::create(there, Communicator::unique_id(*api()), 2, 0, options(0));
  background->turn();
  ends->stop();
  EXPECT_EQ(nccl.alive(), 1U);
  background->turn();
  EXPECT_EQ(kind_of([&] { return making.get(); }), ErrorKind::aborted);
  EXPECT_EQ(nccl.alive(), 0U);
}

TEST_F(NcclCommunicator, CreationThatNcclRefusesReportsWhy) {
  nccl.faults(0).init = Result::system_error;
  nccl.last_error = "no interface eth7";
  auto making = Communicator::create(device(0), Communicator::unique_id(*api()), 2, 0, options(0));
  const auto error = test::error_of([&] { return got(making); });
  EXPECT_EQ(error->kind(), ErrorKind::unavailable);
  EXPECT_STREQ(error->what(),
               "NCCL: making communicator 'test', rank 0: unhandled system error (no interface eth7)");
}

TEST_F(NcclCommunicator, AnInvalidRankIsRefused) {
  for (const auto& place : {std::pair{2, 2}, {2, -1}, {0, 0}})
    EXPECT_EQ(kind_of([&] { return Communicator::create(device(0), {}, place.first, place.second).valid(); }),
              ErrorKind::invalid_argument);
}

// --- Failures ---

TEST_F(NcclCommunicator, AnAsynchronousErrorFailsTheCommunicator) {
  make(2);
  nccl.faults(1).never_ends = true;
  std::vector<float> a{1}, b{1};
  auto first = all_reduce(comms[0], a), other = all_reduce(comms[1], b);
  nccl.kill(1);
  const auto error = test::error_of([&] { got(first); });
  EXPECT_EQ(error->kind(), ErrorKind::peer_lost);
  EXPECT_STREQ(
      error->what(),
      "communicator 'test', rank 0: NCCL: all_reduce float32[1]: remote process exited or there was a "
      "network error (an error of the fake)");
  EXPECT_EQ(failures[0], Kinds{ErrorKind::peer_lost});
  EXPECT_EQ(nccl.alive(), 1U);  // its future failed after the abort
  EXPECT_EQ(kind_of([&] { return all_reduce(comms[0], a).valid(); }), ErrorKind::peer_lost);
  got(comms[1]->abort("the other failed"));
  EXPECT_EQ(kind_of([&] { got(other); }), ErrorKind::aborted);
  EXPECT_TRUE(failures[1].empty());
}

TEST_F(NcclCommunicator, AnOperationThatNeverCompletesTimesOut) {
  make(2);
  nccl.faults(1).never_ends = true;
  std::vector<float> a{1}, b{1};
  auto late = all_reduce(comms[0], a, 30ms), other = all_reduce(comms[1], b, 500ms);
  EXPECT_EQ(kind_of([&] { got(late); }), ErrorKind::deadline_exceeded);
  EXPECT_FALSE(other.ready());
  EXPECT_EQ(kind_of([&] { got(other); }), ErrorKind::deadline_exceeded);
}

TEST_F(NcclCommunicator, AnOperationThatCompletesInTimeSucceeds) {
  make(2);
  std::vector<float> a{1}, b{1};
  auto one = all_reduce(comms[0], a, 30ms);
  loop->advance(29ms);
  auto other = all_reduce(comms[1], b, 30ms);
  got(one);
  got(other);
}

TEST_F(NcclCommunicator, AGroupThatNcclRefusesFails) {
  make(2);
  nccl.faults(0).launch = Result::unhandled_cuda_error;
  std::vector<float> a{1};
  auto refused = all_reduce(comms[0], a);
  EXPECT_EQ(failures[0], Kinds{ErrorKind::internal});
  EXPECT_EQ(kind_of([&] { got(refused); }), ErrorKind::internal);
  EXPECT_EQ(nccl.alive(), 1U);
}

TEST_F(NcclCommunicator, AGroupThatThrowsFailsTheCommunicator) {
  make(2);
  EXPECT_EQ(
      kind_of([&] { got(comms[0]->launch({.what = "it"}, [](Calls&) { throw std::runtime_error("no"); })); }),
      ErrorKind::aborted);
  settle();
  EXPECT_EQ(nccl.alive(), 1U);
}

TEST_F(NcclCommunicator, ALaunchCompletesOnceNcclHasEnqueuedIt) {
  make(2);
  nccl.faults(0).launch_polls = 5;
  expect_works(comms);
}

TEST_F(NcclCommunicator, ALaunchThatIsNeverEnqueuedTimesOut) {
  make(2);
  nccl.faults(0).launch_polls = 1 << 30;
  std::vector<float> a{1};
  auto late = all_reduce(comms[0], a, 20ms);
  EXPECT_TRUE(device(0).order->reserve().is_mine());  // the next launch may start
  EXPECT_EQ(kind_of([&] { got(late); }), ErrorKind::deadline_exceeded);
}

TEST_F(NcclCommunicator, AnUnenqueuedLaunchIsKeptUntilTheAbort) {
  make(2);
  nccl.faults(0).launch_polls = 1 << 30;
  std::vector<float> a{1};
  const auto kept = std::make_shared<int>();
  Launch launch{.stream = stream(0), .what = "it", .timeout = 20ms, .keeps = kept};
  auto late = comms[0]->launch(std::move(launch), [&](Calls& calls) {
    calls.all_reduce(a.data(), a.data(), 1, DataType::float32, RedOp::sum);
  });
  EXPECT_EQ(failures[0], Kinds{ErrorKind::deadline_exceeded});  // the failure is reported at once
  loop->turn();
  EXPECT_FALSE(late.ready());
  EXPECT_EQ(kept.use_count(), 2);
  EXPECT_EQ(kind_of([&] { got(late); }), ErrorKind::deadline_exceeded);
  EXPECT_EQ(kept.use_count(), 1);
  EXPECT_EQ(nccl.alive(), 1U);
}

TEST_F(NcclCommunicator, AnErrorOfTheMarkFailsTheCommunicator) {
  make(1);
  Launch launch{.what = "it"};
  launch.mark = []() -> std::function<bool()> { throw std::runtime_error("no event"); };
  EXPECT_EQ(kind_of([&] { got(comms[0]->launch(std::move(launch), [](Calls&) {})); }), ErrorKind::internal);
}

// No exception may be thrown on threads of the background executor.
TEST_F(NcclCommunicator, AnErrorOfTheDeviceIsReported) {
  bool broken = false;
  for (const int rank : {0, 1, 2})
    device(rank).within = [&](const std::function<void()>& job) {
      job();
      if (broken) throw std::runtime_error("no such device");
    };
  make(3);
  broken = true;
  EXPECT_EQ(kind_of([&] { got(comms[0]->abort("enough")); }), ErrorKind::internal);
  EXPECT_EQ(kind_of([&] { got(comms[1]->close()); }), ErrorKind::internal);
  EXPECT_NE(test::message_of([&] { got(Communicator::create(device(0), {}, 1, 0)); }).find("no such device"),
            std::string::npos);
  comms.clear();  // which aborts the last
  settle();
  EXPECT_EQ(nccl.alive(), 0U);
}

TEST_F(NcclCommunicator, WithoutAMarkALaunchIsCompleteAtOnce) {  // a graph that is captured
  make(1);
  EXPECT_TRUE(comms[0]->launch({.what = "it"}, [](Calls&) {}).ready());
}

// --- Aborts ---

TEST_F(NcclCommunicator, AnAbortWaitsForAThreadInsideNccl) {
  make(2);
  nccl.hold(0);
  std::vector<float> a{1};
  rpc::Future<void> held;
  std::thread inside([&] { held = all_reduce(comms[0], a); });
  nccl.wait_until_held(0);
  auto aborted = comms[0]->abort("enough");
  std::atomic<bool> began{false};
  std::thread aborting([&] {
    began = true;
    background->turn();
  });
  while (!began) std::this_thread::yield();
  loop->turn();  // polls do not use the communicator
  EXPECT_EQ(nccl.alive(), 2U);
  nccl.let_go(0);
  inside.join();
  aborting.join();
  got(aborted);
  EXPECT_EQ(nccl.alive(), 1U);
  EXPECT_EQ(kind_of([&] { got(held); }), ErrorKind::aborted);
}

TEST_F(NcclCommunicator, AnAbortDoesNotWaitForever) {
  auto making = begin(1);
  got(making[0]);
  const UniqueId id = Communicator::unique_id(*api());
  CommunicatorOptions impatient = options(0);
  impatient.abort_timeout = 1ms;
  auto comm = got(Communicator::create(device(0), id, 1, 0, impatient));
  nccl.hold(0);
  std::vector<float> a{1};
  std::thread inside([&] { (void)kind_of([&] { return all_reduce(comm, a).valid(); }); });
  nccl.wait_until_held(0);
  const auto kind = kind_of([&] { got(comm->abort("enough")); });
  nccl.let_go(0);
  inside.join();
  EXPECT_EQ(kind, ErrorKind::deadline_exceeded);
}

TEST_F(NcclCommunicator, AnAbortDuringCreation) {
  auto making = begin(2);
  while (background->turn()) {
  }
  making[0].cancel();  // rank 1 has its communicator already
  comms.push_back(got(making[1]));
  EXPECT_EQ(kind_of([&] { return got(making[0]); }), ErrorKind::cancelled);
}

TEST_F(NcclCommunicator, AbortMayBeCalledRepeatedly) {
  make(1);
  auto first = comms[0]->abort("one"), second = comms[0]->abort("two");
  got(first);
  got(second);
  got(comms[0]->abort("three"));
  EXPECT_NE(std::string(comms[0]->failure()->what()).find("one"), std::string::npos);
}

// --- Closing ---

TEST_F(NcclCommunicator, CloseNeedsAllRanks) {
  make(2);
  expect_works(comms);
  auto one = comms[0]->close();
  settle();
  EXPECT_FALSE(one.ready());
  got(comms[1]->close());
  got(one);
  EXPECT_EQ(nccl.alive(), 0U);
  std::vector<float> a{1};
  EXPECT_EQ(kind_of([&] { return all_reduce(comms[0], a).valid(); }), ErrorKind::failed_precondition);
  got(comms[0]->abort("it is closed"));
  EXPECT_TRUE(failures.empty());
}

TEST_F(NcclCommunicator, CloseThatOthersDoNotJoinIsAborted) {
  make(2);
  EXPECT_EQ(kind_of([&] { got(comms[0]->close()); }), ErrorKind::deadline_exceeded);
  settle();
  EXPECT_EQ(nccl.alive(), 1U);
}

TEST_F(NcclCommunicator, CloseWhileWorkIsInFlight) {
  make(2);
  std::vector<float> a{1}, b{1};
  auto one = all_reduce(comms[0], a);
  EXPECT_EQ(kind_of([&] { (void)comms[0]->close(); }), ErrorKind::failed_precondition);
  got(all_reduce(comms[1], b));
  got(one);
}

TEST_F(NcclCommunicator, ACommunicatorThatIsCreatedTooLateIsAborted) {
  nccl.faults(1).late_handle = true;
  const UniqueId id = Communicator::unique_id(*api());
  EXPECT_EQ(kind_of([&] { return got(Communicator::create(device(1), id, 2, 1, options(1))); }),
            ErrorKind::deadline_exceeded);
  got(Communicator::create(device(0), id, 2, 0, options(0)));
  settle();
  EXPECT_EQ(nccl.alive(), 0U);
}

}  // namespace communicator_test
}  // namespace weft::collectives::nccl::testing

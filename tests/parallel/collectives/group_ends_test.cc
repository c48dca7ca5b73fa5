// Failures of a group's collectives: ranks that call different collectives, die, leave, abort, or are too
// late.
#include <weft/parallel/collectives/flight/flight_dump.h>
#include <weft/parallel/collectives/internal/group/group_service.h>
#include <weft/parallel/collectives/internal/messages/messages_backend.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <random>

#include "tests/parallel/collectives/operations.h"

namespace weft::collectives::testing {
namespace group_ends_test {

class Differences : public ::testing::TestWithParam<std::tuple<int, Backend>> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Differences,
                         ::testing::Combine(::testing::Values(2, 3, 4, 7, 8),
                                            ::testing::ValuesIn(all_backends)));

TEST_P(Differences, AreReportedToEveryRankAndTheGroupContinues) {
  const auto [ranks, backend] = GetParam();
  Company company(ranks, backend);
  const auto groups = company.groups();
  using Begin = std::function<rpc::Future<void>(const Group&)>;
  struct Case {
    Begin most, other;
    std::vector<std::string> words;
  };
  const at::Tensor small = at::zeros({4}), large = at::zeros({1 << 16});
  const std::vector<Case> cases{
      {[&](const Group& g) { return g.all_reduce(small.clone()); },
       [&](const Group& g) { return g.all_reduce(at::zeros({5})); },
       {"all_reduce(sum, float32[4])", "all_reduce(sum, float32[5])", "group_ends_test.cc:"}},
      {[&](const Group& g) { return g.all_reduce(large.clone()); },
       [&](const Group& g) { return g.all_reduce(large.to(at::kDouble)); },
       {"float32[65536]", "float64[65536]"}},
      {[&](const Group& g) { return g.all_reduce(small.clone()); },
       [&](const Group& g) { return g.all_reduce(small.clone(), ReduceOp::max); },
       {"all_reduce(max"}},
      {[&](const Group& g) { return g.broadcast(small.clone(), 0); },
       [&](const Group& g) { return g.broadcast(small.clone(), 1); },
       {"root 0", "root 1"}},
      {[&](const Group& g) { return g.barrier(); },
       [&](const Group& g) { return g.all_reduce(large.clone()); },
       {"barrier()", "all_reduce("}},
      {[&, n = ranks](const Group& g) { return g.all_gather(at::zeros({n, 4}), small); },
       [&, n = ranks](const Group& g) { return g.reduce_scatter(small.clone(), at::zeros({n, 4})); },
       {"all_gather(float32[4])", "reduce_scatter("}},
  };
  for (std::size_t i = 0; i < cases.size(); ++i)
    for (int odd = 0; odd < ranks; ++odd) {
      SCOPED_TRACE(::testing::Message() << "case " << i << ", other at rank " << odd);
      Futures futures;
      for (int rank = 0; rank < ranks; ++rank)
        futures.push_back((rank == odd ? cases[i].other : cases[i].most)(groups[rank]));
      auto words = cases[i].words;
      words.push_back("rank " + std::to_string(odd) + " (worker" + std::to_string(odd) + "): ");
      expect_all(std::move(futures), ErrorKind::invalid_argument, words);
    }
  together(groups, [](const Group& group) { return group.barrier(); });
}

// --- Sizes of pairs ---

class SizesOfPairs : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, SizesOfPairs, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

// Rank 0 sends `given` elements to rank 1, which expects `taken`. All other ranks send and expect none.
struct Pair {
  std::int64_t given, taken;
};
Futures exchange(const std::vector<Group>& groups, Pair pair) {
  Futures futures;
  for (const Group& group : groups) {
    Tensors inputs(groups.size(), at::ones({0})), outputs(groups.size(), at::zeros({0}));
    if (group.rank() == 0) inputs[1] = at::ones({pair.given});
    if (group.rank() == 1) outputs[0] = at::zeros({pair.taken});
    futures.push_back(group.all_to_all_v(outputs, inputs));
  }
  return futures;
}

TEST_P(SizesOfPairs, ThatDifferFailTheGroupAndAreBothNamed) {
  // Sizes of 0, and sizes at the limits of a message.
  for (const Pair pair : {Pair{0, 100}, Pair{100, 0}, Pair{3, 5}, Pair{65'536, 131'072}}) {
    SCOPED_TRACE(pair.given);
    const auto now = company.groups();
    Futures futures = exchange(now, pair), taker, later;
    taker.push_back(std::move(futures[1]));
    futures.erase(futures.begin() + 1);
    const std::vector<std::string> words{"all_to_all_v(", "rank 0",
                                         " has " + std::to_string(pair.given) + " elements for rank 1",
                                         "expects " + std::to_string(pair.taken)};
    expect_all(std::move(taker), ErrorKind::invalid_argument, words);
    // A rank whose sizes match those of all others may have succeeded.
    for (auto& future : futures) (void)test::kind_of([&] { got(std::move(future)); });
    for (const Group& group : now) later.push_back(group.barrier());
    expect_all(std::move(later), ErrorKind::invalid_argument, words);
  }
}

TEST_P(SizesOfPairs, MayBeZero) {
  for (auto& future : exchange(groups, {0, 0})) got(std::move(future));
  for (auto& future : exchange(groups, {7, 7})) got(std::move(future));
}

// A rank that starts another collective after a failure, and before the group has the error, must not get an
// empty error.
TEST_P(SizesOfPairs, ThatDifferFailConcurrentCollectives) {
  for (int round = 0; round < 20; ++round) {
    const auto now = company.groups();
    std::vector<std::thread> threads;
    for (const Group& group : now)
      threads.emplace_back([&now, &group] {
        Tensors inputs(now.size(), at::ones({2})), outputs(now.size(), at::zeros({2}));
        if (group.rank() == 1) outputs[0] = at::zeros({3});
        Futures futures;
        futures.push_back(group.all_to_all_v(outputs, inputs));
        for (int i = 0; i < 20; ++i) futures.push_back(group.all_reduce(at::ones({2})));
        for (auto& future : futures) {  // collectives before the failure may succeed
          const auto kind = test::kind_of([&] { got(std::move(future)); });
          EXPECT_EQ(kind.value_or(ErrorKind::invalid_argument), ErrorKind::invalid_argument);
        }
      });
    for (auto& thread : threads) thread.join();
    Futures later;
    for (const Group& group : now) later.push_back(group.barrier());
    expect_all(std::move(later), ErrorKind::invalid_argument, {"all_to_all_v("});
  }
}

// --- Errors that end a group ---

class GroupEnds : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupEnds, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(GroupEnds, ADeadlineReportsTheMissingRanksToAll) {
  expect_all(
      but(2,
          [](const Group& group) { return group.barrier(group.rank() == 0 ? Timeout(50ms) : std::nullopt); }),
      ErrorKind::deadline_exceeded, {"barrier()", "rank 2 (worker2) has not begun it", "0.05 s"});
  // Rank 2 may succeed with the barrier that the others have begun if it does so before it is told.
  (void)test::kind_of([&] { got(groups[2].barrier()); });
  constexpr int none = -1;
  expect_all(but(none, [](const Group& group) { return group.barrier(); }), ErrorKind::deadline_exceeded,
             {"rank 2 (worker2)"});
  const auto others = company.groups();  // another group is not affected
  together(others, [](const Group& group) { return group.barrier(); });
}

// late_after limits the wait for other ranks, and `timeout` the whole operation.
TEST_P(GroupEnds, ARankThatIsLateIsReportedToAll) {
  const GroupOptions options{.late_after = 50ms};
  const auto late = company.groups(options);
  expect_all(but(2, [&](const Group& group) { return late[group.rank()].barrier(); }),
             ErrorKind::deadline_exceeded, {"barrier()", "rank 2 (worker2) has not begun it", "0.05 s"});
  const auto objects = company.groups(options);
  expect_all(
      but(2,
          [&](const Group& group) {
            return objects[group.rank()].all_gather_object(1).then([](rpc::Result<std::vector<int>>&& all) {
              return rpc::capture([&] { (void)std::move(all).get(); });
            });
          }),
      ErrorKind::deadline_exceeded, {"all_gather_object", "rank 2 (worker2)"});
  const auto messages = company.groups(options);
  at::Tensor tensor = at::zeros({3});
  test::expect_error(messages[0].recv(tensor, 2), ErrorKind::deadline_exceeded, "recv(");
  // A timeout that the call states takes its place.
  const auto patient = company.groups(options);
  auto received = patient[0].recv(tensor, 2, 0, 1min);
  expect_all(but(0, [&](const Group& group) { return patient[group.rank()].barrier(); }),
             ErrorKind::deadline_exceeded, {"rank 0 (worker0) has not begun it"});
  test::expect_error(std::move(received), ErrorKind::deadline_exceeded, "rank 0 (worker0)");
}

// A rank that makes progress in another group, as a stage of a pipeline does while a spare waits, is not
// late.
TEST_P(GroupEnds, ARankThatWorksInAnotherGroupIsNotLate) {
  const auto late = company.groups({.late_after = 1s}), others = company.groups();
  auto waits = late[2].barrier();
  const auto begun = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begun < 2200ms)
    together(others, [](const Group& group) { return group.barrier(); });
  for (auto& future : but(2, [&](const Group& group) { return late[group.rank()].barrier(); }))
    got(std::move(future));
  got(std::move(waits));
}

TEST_P(GroupEnds, AMemberThatDiesIsNamedToAll) {
  const auto others = company.groups();
  together(groups, [](const Group& group) { return group.barrier(); });
  Futures futures = but(2, [](const Group& group) { return group.all_reduce(at::zeros({100'000})); });
  company.end(2);
  expect_all(std::move(futures), ErrorKind::peer_lost, {"worker2", "lost"});
  expect_all(but(2, [&](const Group& group) { return others[group.rank()].barrier(); }), ErrorKind::peer_lost,
             {"worker2", "lost"});
}

TEST_P(GroupEnds, AMemberThatLeavesIsNamedToRanksThatStillNeedIt) {
  together(groups, [](const Group& group) { return group.barrier(); });
  Futures futures = but(2, [](const Group& group) { return group.barrier(); });
  got(company.agent(2).leave());
  expect_all(std::move(futures), ErrorKind::shut_down, {"rank 2 (worker2)"});
}

TEST_P(GroupEnds, AMemberThatLeavesOneGroupRemainsInOthers) {
  const auto others = company.groups();
  together(groups, [](const Group& group) { return group.barrier(); });
  Futures futures = but(2, [](const Group& group) { return group.barrier(); });
  groups[2].leave();
  expect_all(std::move(futures), ErrorKind::shut_down, {"rank 2 (worker2)"});
  test::expect_error(groups[2].barrier(), ErrorKind::shut_down, "rank 2 (worker2) has left");
  together(others, [](const Group& group) { return group.barrier(); });
}

TEST_P(GroupEnds, AMemberThatLeavesAfterItsLastCollectiveFailsNone) {
  for (int i = 0; i < 20; ++i) {
    const auto some = company.groups();
    Futures futures;
    for (const Group& group : some) futures.push_back(group.all_reduce(at::zeros({10'000})));
    got(std::move(futures[2]));
    some[2].leave();
    futures.erase(futures.begin() + 2);
    for (auto& future : futures) got(std::move(future));
  }
}

// Objects go through rank 0.
TEST_P(GroupEnds, AnExchangeOfObjectsFailsIfRankZeroHasLeft) {
  together(groups, [](const Group& group) { return group.barrier(); });
  got(company.agent(0).leave());
  test::expect_error(groups[1].all_gather_object(std::int64_t{1}), ErrorKind::shut_down, "rank 0 (worker0)");
}

// If a collective succeeded on one rank, then it has succeeded on all survivors, or they know which rank
// died.
class GroupKills : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, GroupKills, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());
TEST_P(GroupKills, ADeathInAnyOperationIsNamedToAllSurvivors) {
  constexpr std::size_t operations = std::size(group_operations);
  struct InProgress {
    std::size_t operation;
    Begun begun;
  };
  std::vector<std::size_t> failed(operations);
  for (std::uint64_t seed = 0; seed < 5 * operations; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const auto draw = [&](std::uint64_t below) { return static_cast<int>(random() % below); };
    const int ranks = GetParam() == Backend::hosts    ? 4 + 2 * draw(2)
                      : GetParam() == Backend::uneven ? 3 + draw(4)
                                                      : 2 + draw(4);
    const int dead = draw(ranks), late = draw(ranks);
    Company company(ranks, GetParam());
    const auto groups = company.groups();
    const Round round{.n = draw(2) == 0 ? 10 : 200'000, .number = draw(1000), .placed = draw(2) == 0};
    std::vector<std::vector<InProgress>> in_progress(ranks);
    for (int i = 0; i < 3; ++i) {
      // in the last round every operation occurs, depending on the seed
      const std::size_t operation = i == 2 ? seed % operations : draw(operations);
      for (int rank = 0; rank < ranks; ++rank)
        if (rank != dead || (late != dead && i < 2))
          in_progress[rank].push_back({operation, group_operations[operation].begin(groups[rank], round)});
    }
    company.end(dead);
    const std::string name = "worker" + std::to_string(dead);
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == dead) continue;
      for (auto& [operation, begun] : in_progress[rank]) {
        SCOPED_TRACE(group_operations[operation].name);
        const auto error = error_of([&done = begun.done] { got(std::move(done)); });
        if (!error) {
          EXPECT_TRUE(begun.right()) << "rank " << rank;
          continue;
        }
        ++failed[operation];
        EXPECT_EQ(error->kind(), ErrorKind::peer_lost) << error->what();
        EXPECT_NE(std::string(error->what()).find(name), std::string::npos) << error->what();
      }
      test::expect_error(groups[rank].barrier(), ErrorKind::peer_lost, name);
    }
  }
  for (std::size_t operation = 0; operation < operations; ++operation)
    EXPECT_GT(failed[operation], 0U) << group_operations[operation].name;
}

TEST_P(GroupEnds, ACancelledFutureAbortsTheGroup) {
  Futures futures = but(2, [](const Group& group) { return group.barrier(); });
  futures[0].cancel();
  expect_all(std::move(futures), ErrorKind::aborted, {"rank 0 (worker0) aborted barrier()"});
  // In shared memory the third rank may complete the barrier that the others had called, but not the next
  // one.
  (void)groups[2].barrier();
  expect_all(Several{groups[2].barrier()}, ErrorKind::aborted, {"rank 0"});
}

TEST_P(GroupEnds, AbortFailsTheGroupOnAllRanks) {
  Futures futures = but(1, [](const Group& group) { return group.barrier(); });
  groups[1].abort("the loss is NaN");
  expect_all(std::move(futures), ErrorKind::aborted, {"rank 1 (worker1)", "the loss is NaN"});
}

// Rank 2 is not a member of the group in which rank 0 waits. After the first group has ended, each rank
// aborts only the groups that it is a member of itself.
TEST_P(GroupEnds, AbortFailsTheGroupsThatWereSplitFromIt) {
  for (const bool has_ended : {false, true}) {
    const auto parents = has_ended ? company.groups() : groups;
    const auto parts = at_all(parents, [](const Group& group) { return group.split(group.rank() / 2); });
    const std::vector<Group> pair{parts[0].value(), parts[1].value()};
    if (has_ended) {
      EXPECT_EQ(test::kind_of([&] { parents[0].barrier(50ms).get(); }), ErrorKind::deadline_exceeded);
      together(pair, [](const Group& group) { return group.barrier(); });
    }
    Futures futures;
    futures.push_back(pair[0].barrier());
    parents[has_ended ? 1 : 2].abort("the loss is NaN");
    expect_all(std::move(futures), ErrorKind::aborted,
               {has_ended ? "rank 1 (worker1)" : "rank 2 (worker2)", "the loss is NaN"});
  }
}

// On hosts, some ranks know of the difference while others of their host wait in memory for the last rank.
TEST_P(GroupEnds, ADifferenceThatSomeRanksMissedFailsWithTheGroupsError) {
  Futures futures = but(ranks - 1, [](const Group& group) {
    return group.all_reduce(at::zeros({group.rank() == 1 ? 5 : 4}), ReduceOp::sum,
                            group.rank() == 1 ? Timeout(50ms) : std::nullopt);
  });
  expect_all(std::move(futures), ErrorKind::deadline_exceeded, {"has not begun it"});
}

// The timer of the first barrier fires during the second one.
TEST(GroupTimeouts, OfALaterCollectiveHoldAfterAnEarlierOneSucceeded) {
  Company company(2);
  const auto groups = company.groups();
  together(groups, [](const Group& group) { return group.barrier(2s); });
  expect_all(Several{groups[0].barrier(2050ms)}, ErrorKind::deadline_exceeded,
             {"did not complete within 2.05 s", "rank 1 (worker1) has not begun it"});
}

// --- Reports of the collectives in flight ---

TEST_P(GroupEnds, AHangIsRecordedBeforeARankGetsTheError) {
  const auto folder = std::filesystem::temp_directory_path() / ("weft-flights-" + std::to_string(::getpid()));
  const auto recorded = company.groups({.flight_recorder_dir = folder}),
             beside = company.groups({.name = "beside", .flight_recorder_dir = folder});
  auto elsewhere = beside[2].barrier();
  together(recorded, [](const Group& group) { return group.all_reduce(at::ones({7})); });
  Futures futures = but(2, [&](const Group& group) {
    return recorded[group.rank()].broadcast(at::ones({5}), 1,
                                            group.rank() == 0 ? Timeout(50ms) : std::nullopt);
  });
  auto message = recorded[2].recv(at::ones({3}), 0, 9);
  expect_all(std::move(futures), ErrorKind::deadline_exceeded, {"rank 2"});
  EXPECT_EQ(test::kind_of([&] { got(std::move(message)); }), ErrorKind::deadline_exceeded);
  const FlightFolder flights = read_flight_dumps(folder);
  std::filesystem::remove_all(folder);
  ASSERT_EQ(flights.dumps.size(),
            // the dumps of all groups of these agents, because one group may wait for another
            2U * static_cast<std::size_t>(ranks));
  for (const FlightDump& dump : flights.dumps) {
    if (dump.group == "beside") {
      EXPECT_EQ(dump.error, "");
      EXPECT_EQ(dump.records.entries.size(), dump.rank == 2 ? 1U : 0U);
      continue;
    }
    SCOPED_TRACE(dump.rank);
    EXPECT_EQ(dump.members, groups[0].members());
    EXPECT_NE(dump.error.find("rank 2 (worker2) has not begun it"), std::string::npos) << dump.error;
    ASSERT_EQ(dump.records.entries.size(), 2U);
    const FlightEntry &first = dump.records.entries[0], &last = dump.records.entries[1];
    EXPECT_EQ(first.state, FlightState::done);
    EXPECT_EQ(first.text, "all_reduce(sum, float32[7])");
    EXPECT_EQ(first.bytes, 28U);
    EXPECT_NE(last.state, FlightState::done);
    if (dump.rank == 2) {
      EXPECT_EQ(last.what(), "recv(float32[3], from 0, tag 9)");
    } else {
      EXPECT_EQ(last.text, "broadcast(float32[5], root 1)");
      EXPECT_NE(last.site.find("group_ends_test.cc:"), std::string::npos);
      EXPECT_EQ(std::count(last.waits_for.begin(), last.waits_for.end(), 2), 1);
    }
  }
  const auto path = groups[0].write_flight(folder);
  EXPECT_TRUE(std::filesystem::exists(path));
  for (int rank = 0; rank < ranks; ++rank) company.end(rank);  // which the others write down, too
  std::filesystem::remove_all(folder);
}

// Dumps show when data has begun to move, where the backend knows that all ranks have arrived.
TEST_P(GroupEnds, OperationsAreRecordedAsMovingOnceAllRanksHaveArrived) {
  Tensors tensors(ranks);
  together(groups,
           [&](const Group& group) { return group.all_reduce(tensors[group.rank()] = at::ones({100'000})); });
  together(groups, [&](const Group& group) { return group.broadcast(tensors[group.rank()], 1); });
  Futures waiting = but(2, [](const Group& group) { return group.barrier(); });
  const auto layer = CollectivesLayer::of(*company.agent(0).core());
  const auto records = [&] { return layer->all().front()->failure().flight().records; };
  test::eventually("rank 0 has begun its barrier", [&] { return records().begun == 3; });
  const auto entries = records().entries;
  for (const std::size_t done : {0, 1}) {
    EXPECT_GE(entries[done].moved, entries[done].begun);
    EXPECT_LE(entries[done].moved, entries[done].ended);
  }
  EXPECT_EQ(entries[2].moved, 0);
  EXPECT_EQ(entries[2].state, FlightState::begun);
  waiting.push_back(groups[2].barrier());
  for (auto& future : waiting) got(std::move(future));
}

// An agent outside the group asks, as `weft dash` does.
TEST_P(GroupEnds, MissingRanksAreReportedToAnyAgentWithTheLatestOperations) {
  for (int i = 0; i < 6; ++i) together(groups, [](const Group& group) { return group.barrier(); });
  Futures waiting = but(2, [](const Group& group) { return group.barrier(); });
  const rpc::Peer worker0 = company.agent(2).peer("worker0");
  const auto ask = [&](std::uint64_t latest) {
    const auto dumps = got(worker0.call<&GroupService::flight>(latest));
    return dumps.size() == 1 ? flight_dump_of(dumps.front()) : FlightDump{};
  };
  test::eventually("worker0 has begun its barrier", [&] { return ask(0).records.begun == 7; });
  for (const std::uint64_t latest : {0, 4, 100}) {
    const FlightDump dump = ask(latest);
    EXPECT_EQ(dump.rank, 0);
    EXPECT_EQ(dump.members, groups[0].members());
    ASSERT_EQ(dump.records.entries.size(), latest == 0 ? 1U : latest == 4 ? 4U : 7U);
    EXPECT_EQ(dump.records.entries.back().what(), "#6 barrier()");
    EXPECT_TRUE(dump.records.entries.back().is_open());
    const std::vector<int>& missing = dump.records.entries.back().waits_for;
    EXPECT_EQ(std::count(missing.begin(), missing.end(), 2), 1);
  }
  waiting.push_back(groups[2].barrier());
  for (auto& future : waiting) got(std::move(future));
}

// The file that rank 0 writes first is a pipe, so that rank 0 waits until the test reads it.
TEST_P(GroupEnds, ErrorsAreReportedToOtherMembersBeforeFilesAreWritten) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("weft-slow-flights-" + std::to_string(::getpid()));
  const auto recorded = company.groups({.flight_recorder_dir = folder});
  const std::string pipe =
      recorded[0].write_flight(folder).string() + "." + std::to_string(::getpid()) + ".part";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  Futures others = but(2, [&](const Group& group) {
    return recorded[group.rank()].barrier(group.rank() == 0 ? Timeout(50ms) : std::nullopt);
  });
  Futures own;
  own.push_back(std::move(others.front()));
  others.erase(others.begin());
  expect_all(std::move(others), ErrorKind::deadline_exceeded, {"rank 2 (worker2) has not begun it"});
  EXPECT_FALSE(own.front().ready()) << "before its dump is written";
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  expect_all(std::move(own), ErrorKind::deadline_exceeded, {"rank 2 (worker2) has not begun it"});
  ::close(reader);
  // fails after its dump is written
  expect_all(Several{recorded[2].barrier()}, ErrorKind::deadline_exceeded,
             {"rank 2 (worker2) has not begun it"});
  std::filesystem::remove_all(folder);
}

// --- Messages for a group that a member has released ---

class ReleasedGroups : public ::testing::Test {
 protected:
  // Rank 0 sends to rank 1, which has called `before` and then released the group. expects: rank 1 creates
  // another group in the meantime.
  rpc::Future<void> sent_after(const std::function<void(const Group&)>& before, bool expects = false) {
    auto groups = company.groups();
    before(groups[1]);
    groups.pop_back();
    const auto layer = CollectivesLayer::of(*company.agent(1).core());
    test::eventually("rank 1 has released it", [&] { return layer->groups() == 0; });
    if (expects) layer->expect_group({});
    return company.agent(0).peer("worker1").call<&GroupService::message>(
        GroupId{company.agent(0).id().incarnation, ++number}, std::uint64_t{0}, std::string("float32[1]"),
        rpc::Buffer::allocate(4));
  }
  Company company{2};
  std::uint64_t number = 0;  // of rank 0's groups
};

TEST_F(ReleasedGroups, ReportWhyTheyFailed) {
  Futures sent;
  sent.push_back(sent_after([](const Group& group) { group.abort("no luck"); }));
  sent.push_back(sent_after([](const Group& group) { group.abort("no luck"); }, true));
  expect_all(std::move(sent), ErrorKind::aborted, {"no luck"});
}

TEST_F(ReleasedGroups, ReportThatTheyAreReleased) {
  expect_all(Several{sent_after([](const Group&) {})}, ErrorKind::aborted,
             {"worker1 has released this group"});
}

// --- Messages for collectives that were not begun ---

class EarlyMessages : public ::testing::Test {
 protected:
  static Futures begin(const Group& group, int collectives, std::int64_t elements) {
    Futures futures;
    for (int i = 0; i < collectives; ++i) futures.push_back(group.all_reduce(at::ones({elements})));
    return futures;
  }
  rpc::AgentId id(int rank) { return company.agent(rank).id(); }
  Company company{2};
  std::uint64_t number = 0;  // the number of groups of rank 0
};

TEST_F(EarlyMessages, UpToTheLimitAreKept) {
  const auto groups = company.groups({.max_early_messages = 8, .max_early_bytes = 8 * 16});
  for (int round = 0; round < 3; ++round) {
    Futures ahead = begin(groups[1], 8, 4);
    auto last = groups[1].send(at::ones({1}), 0);
    got(groups[0].recv(at::zeros({1}), 1));  // earlier messages have arrived
    got(std::move(last));
    Futures behind = begin(groups[0], 8, 4);
    for (auto* futures : {&ahead, &behind})
      for (auto& future : *futures) got(std::move(future));
  }
}

TEST_F(EarlyMessages, BeyondTheirNumberFailTheGroup) {
  const auto groups = company.groups({.max_early_messages = 8});
  const std::vector<std::string> words{"rank 0 (worker0) has begun 0 collectives", "9 messages of 144 bytes",
                                       "max_early_messages (8)"};
  expect_all(begin(groups[1], 20, 4), ErrorKind::resource_exhausted, words);
  expect_all(begin(groups[0], 1, 4), ErrorKind::resource_exhausted, words);
}

TEST_F(EarlyMessages, BeyondTheirBytesFailTheGroup) {
  const auto groups = company.groups({.max_early_bytes = 100'000});
  expect_all(begin(groups[1], 3, 10'000), ErrorKind::resource_exhausted,
             {"3 messages of 120000 bytes", "max_early_bytes (100000)"});
}

// Texts of members that call another collective than those which have not started here.
TEST_F(EarlyMessages, TextsOfDifferencesCount) {
  const auto texts = [&](const std::vector<Group>& groups, int count) {
    const auto core =
        CollectivesLayer::of(*company.agent(0).core())->find(GroupId{id(0).incarnation, ++number});
    for (int i = 0; i < count; ++i)
      core->collectives().signature(1, static_cast<std::uint64_t>(i), std::string(1000, 'x'));
    Futures futures;
    futures.push_back(groups[1].barrier());
    return futures;
  };
  const auto by_number = company.groups({.max_early_messages = 8});
  expect_all(texts(by_number, 9), ErrorKind::resource_exhausted,
             {"9 messages of 9000 bytes", "max_early_messages (8)"});
  const auto by_bytes = company.groups({.max_early_bytes = 2'500});
  expect_all(texts(by_bytes, 3), ErrorKind::resource_exhausted,
             {"3 messages of 3000 bytes", "max_early_bytes (2500)"});
}

// --- Stalls ---

// As in an evaluation on rank 0 with a module that runs collectives.
TEST(StalledCollectives, AreLoggedWithTheRanksForWhichTheyWait) {
  for (const Backend backend : backends) {
    const auto warned = std::make_shared<test::Event>();
    Company company(2, backend, std::make_unique<test::InProcessJobStore>(), nullptr,
                    [&](rpc::AgentOptions& options) {
                      options.log = [warned](const rpc::LogRecord& record) {
                        const auto has = [&](std::string_view text) {
                          return record.message.find(text) != std::string_view::npos;
                        };
                        if (record.level == rpc::LogLevel::warning && record.agent == "worker0" &&
                            has("group 'world': all_reduce(sum, float32[3]) at group_ends_test.cc:") &&
                            has("has waited for 0.02 s for rank 1 (worker1)"))
                          warned->set();
                      };
                    });
    const auto groups = company.groups({.stall_warning = 20ms});
    Futures futures;
    futures.push_back(groups[0].inlined().all_reduce(at::ones({3})));
    warned->wait();
    futures.push_back(groups[1].all_reduce(at::ones({3})));
    for (auto& future : futures) got(std::move(future));
  }
}

// --- Messages for a group that is not made yet ---

class EarlyMessagesOfAGroup : public EarlyMessages {
 protected:
  rpc::Future<void> send(std::size_t bytes) {
    return company.agent(1).peer("worker0").call<&GroupService::message>(
        group, std::uint64_t{0}, std::string("float32[1]"), rpc::Buffer::allocate(bytes));
  }
  std::shared_ptr<GroupCore> make(const GroupOptions& options) {
    auto core = std::make_shared<GroupCore>(company.agent(0).core(), group,
                                            GroupCore::Options{options, context->devices()},
                                            std::vector{id(0), id(1)}, 0, GroupBackend::messages,
                                            std::make_unique<MessagesBackend>(0, 2, Bounds{}, std::nullopt));
    context->add(core);
    return core;
  }
  const GroupId group{1, 1};
  const std::shared_ptr<CollectivesLayer> context = CollectivesLayer::of(*company.agent(0).core());
};

TEST_F(EarlyMessagesOfAGroup, BeyondALimitFailIt) {
  for (const GroupOptions& options :
       {GroupOptions{.max_early_messages = 8}, GroupOptions{.max_early_bytes = 900}}) {
    context->expect_group(options);
    Futures futures;
    for (int i = 0; i < 8; ++i) futures.push_back(send(100));
    const std::vector<std::string> words{
        "9 messages of", "before worker0 created the group",
        "max_early_messages (" + std::to_string(options.max_early_messages) + ")",
        "max_early_bytes (" + std::to_string(options.max_early_bytes) + ")"};
    for (int i = 0; i < 2; ++i) {
      expect_all(Several{send(100)}, ErrorKind::resource_exhausted, words);
    }
    for (const auto& future : futures) EXPECT_FALSE(future.ready()) << "kept";
    const auto core = make(options);
    futures.push_back(core->messages().send(1, {}));
    expect_all(std::move(futures), ErrorKind::resource_exhausted, words);
    context->remove(group);
  }
}

TEST_F(EarlyMessagesOfAGroup, UpToTheLimitAreKeptForEachGroup) {
  const GroupOptions options{.max_early_messages = 8};
  for (int round = 0; round < 3; ++round) {
    context->expect_group(options);
    Futures futures;
    for (int i = 0; i < 8; ++i) futures.push_back(send(4));
    test::eventually("all are kept", [&] { return context->kept_early() == 8; });
    const auto core = make(options);
    EXPECT_EQ(context->kept_early(), 0U);
    for (int i = 0; i < 8; ++i)
      got(core->messages().receive(1, {.type = "float32[1]", .bytes = rpc::Buffer::allocate(4)}));
    for (auto& future : futures) got(std::move(future));
    context->remove(group);
  }
  context->expect_group(options);
  auto kept = send(4);
  test::eventually("it is kept", [&] { return context->kept_early() == 1; });
  context->give_up_group(options);
  EXPECT_EQ(context->kept_early(), 0U);
  EXPECT_TRUE(error_of([&] { got(std::move(kept)); }));
}

}  // namespace group_ends_test
}  // namespace weft::collectives::testing

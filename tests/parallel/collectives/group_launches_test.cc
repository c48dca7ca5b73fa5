// Launches: ranks become ready for collectives in different orders, and begin them in one.
#include <weft/parallel/collectives/internal/group/launch_sequence.h>
#include <weft/rpc/core/when_all.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/parallel/collectives/company.h"

namespace weft::collectives::testing {
namespace group_launches_test {

class Launches : public OfFew {};
INSTANTIATE_TEST_SUITE_P(Backends, Launches, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

constexpr int buckets = 12;

std::string bucket_name(int bucket) { return "bucket " + std::to_string(bucket); }
std::vector<int> shuffled(std::mt19937_64& random) {
  std::vector<int> order;
  for (int bucket = 0; bucket < buckets; ++bucket) order.push_back(bucket);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

// Buckets differ in size. If two ranks start them in different orders, both get an error.
struct Buckets {
  explicit Buckets(int rank) {
    for (int bucket = 0; bucket < buckets; ++bucket)
      tensors.push_back(values(rank, {1 + bucket * bucket * 97}));
  }
  rpc::Future<void> launch(const Group& group, int bucket) {
    return group.launch(bucket_name(bucket), [this, group, bucket] {
      begun.push_back(bucket);
      return group.all_reduce(tensors[bucket]);
    });
  }
  Tensors tensors;
  std::vector<int> begun;
};

std::vector<Buckets> buckets_of(int ranks) {
  std::vector<Buckets> all;
  for (int rank = 0; rank < ranks; ++rank) all.emplace_back(rank);
  return all;
}

TEST_P(Launches, StartInOneOrderWhateverTheOrderOfReadiness) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::vector<Buckets> all = buckets_of(ranks);
    std::vector<Futures> futures(ranks);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        std::mt19937_64 random(seed * 100 + static_cast<std::uint64_t>(rank));
        for (const int bucket : shuffled(random)) {
          futures[rank].push_back(all[rank].launch(groups[rank], bucket));
          if (random() % 2 == 0) std::this_thread::yield();
        }
      });
    for (auto& thread : threads) thread.join();
    for (auto& of_rank : futures)
      for (auto& future : of_rank) got(std::move(future));
    for (int rank = 0; rank < ranks; ++rank) {
      EXPECT_EQ(all[rank].begun, all[0].begun);
      for (int bucket = 0; bucket < buckets; ++bucket)
        expect_equal(all[rank].tensors[bucket], sum_of(ranks, all[rank].tensors[bucket].sizes()));
    }
  }
}

// Rank 0 waits for one launch before it is ready for the other one. The other ranks are ready for them in the
// reverse order.
TEST_P(Launches, DoNotWaitForALaunchThatSomeRankIsNotReadyFor) {
  std::vector<Buckets> all = buckets_of(ranks);
  Futures others;
  for (int rank = 1; rank < ranks; ++rank)
    for (const int bucket : {1, 0}) others.push_back(all[rank].launch(groups[rank], bucket));
  got(all[0].launch(groups[0], 0));
  got(all[0].launch(groups[0], 1));
  for (auto& future : others) got(std::move(future));
  for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(all[rank].begun, (std::vector{0, 1}));
}

TEST_P(Launches, ANameMayBeReusedOnceItsLaunchHasStarted) {
  for (int round = 0; round < 3; ++round)
    together(groups,
             [](const Group& group) { return group.launch("again", [group] { return group.barrier(); }); });
  auto first = groups[0].launch("twice", [&] { return groups[0].barrier(); });
  test::expect_error(groups[0].launch("twice", [&] { return groups[0].barrier(); }),
                     ErrorKind::invalid_argument, "launch(twice)", "waits for other ranks already");
  test::expect_error(groups[0].launch("", [&] { return groups[0].barrier(); }), ErrorKind::invalid_argument,
                     "name is empty");
  for (int rank = 1; rank < ranks; ++rank)
    first = rpc::when_all([&] {
      Futures both;
      both.push_back(std::move(first));
      both.push_back(groups[rank].launch("twice", [&, rank] { return groups[rank].barrier(); }));
      return both;
    }());
  got(std::move(first));
}

TEST_P(Launches, RunWithTheCallersThreadState) {
  std::atomic<int> without_gradients = 0;
  const at::NoGradGuard no_grad;
  together(groups, [&](const Group& group) {
    return group.launch("state", [&, group] {
      without_gradients += at::GradMode::is_enabled() ? 0 : 1;
      return group.barrier();
    });
  });
  EXPECT_EQ(without_gradients, ranks);
}

TEST_P(Launches, FailWithTheExceptionOfTheirFunction) {
  Futures futures;
  for (const Group& group : groups)
    futures.push_back(
        group.launch("throws", []() -> rpc::Future<void> { throw std::runtime_error("no bucket"); }));
  for (auto& future : futures) EXPECT_THROW(got(std::move(future)), std::runtime_error);
  together(groups, [](const Group& group) { return group.barrier(); });
}

TEST_P(Launches, NameARankThatIsNotReadyAtTheDeadline) {
  Futures futures = but(1, [&](const Group& group) {
    return group.launch("bucket 3", [group] { return group.barrier(); }, 50ms);
  });
  expect_all(std::move(futures), ErrorKind::deadline_exceeded,
             {"launch(bucket 3) at group_launches_test.cc:", "rank 1 (worker1) has not begun it"});
}

TEST_P(Launches, FailWithARankThatDies) {
  for (const int dies : {ranks - 1, 0}) {
    SCOPED_TRACE(dies);
    Company mortal(ranks, GetParam());
    auto members = mortal.groups();
    std::vector<Buckets> all = buckets_of(ranks);
    Futures done, waiting;
    // All ranks are ready for two launches, in different orders. The rank that dies is ready for no other.
    for (int rank = 0; rank < ranks; ++rank)
      for (const int bucket : {rank % 2, 1 - rank % 2})
        done.push_back(all[rank].launch(members[rank], bucket));
    for (auto& future : done) got(std::move(future));
    for (int rank = 0; rank < ranks; ++rank)
      for (int bucket = 2; bucket < buckets; ++bucket)
        if (rank != dies) waiting.push_back(all[rank].launch(members[rank], bucket));
    mortal.end(dies);
    expect_all(std::move(waiting), ErrorKind::peer_lost, {"worker" + std::to_string(dies)});
    for (int rank = 0; rank < ranks; ++rank) EXPECT_EQ(all[rank].begun.size(), 2U);
  }
}

// The death occurs between readiness and start: some launches have started on some ranks.
TEST_P(Launches, FailWithARankThatDiesAtAnyTime) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    SCOPED_TRACE(seed);
    Company mortal(ranks, GetParam());
    auto members = mortal.groups();
    std::vector<Buckets> all = buckets_of(ranks);
    std::mt19937_64 random(seed);
    const int dies = static_cast<int>(random() % static_cast<std::uint64_t>(ranks));
    Futures survivors, dead;
    for (int rank = 0; rank < ranks; ++rank)
      for (const int bucket : shuffled(random))
        if (rank != dies || bucket != 0)
          (rank == dies ? dead : survivors).push_back(all[rank].launch(members[rank], bucket));
    mortal.end(dies);
    std::size_t lost = 0;
    for (auto& future : survivors)
      if (const auto error = error_of([&] { got(std::move(future)); })) {
        EXPECT_EQ(error->kind(), ErrorKind::peer_lost) << error->what();
        ++lost;
      }
    EXPECT_GE(lost, static_cast<std::size_t>(ranks - 1));  // bucket 0, on each survivor
    for (auto& future : dead) (void)test::kind_of([&] { got(std::move(future)); });
  }
}

// --- The order of one member, for which replies of rank 0 arrive in any order ---

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
    begin(std::make_exception_ptr(rpc::Error(ErrorKind::peer_lost, "rank 1 was lost")));
  EXPECT_EQ(failed, (std::vector{2, 3}));
  EXPECT_TRUE(sequence.take_all().empty());
}

}  // namespace group_launches_test
}  // namespace weft::collectives::testing

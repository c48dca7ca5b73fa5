// Groups of processes: results, and the errors of the other ranks when one process is killed or stopped.
#include <weft/rpc/job/job.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <random>
#include <thread>

#include "tests/parallel/collectives/operations.h"
#include "tests/support/child.h"

namespace weft::collectives::testing {
namespace group_process_test {

// Members in separate processes, which report lines of text.
class Processes : public ::testing::TestWithParam<Backend> {
 protected:
  using Body = std::function<void(const Group&, const std::function<void(const std::string&)>& say)>;

  void start(int ranks, const Body& body) {
    members.clear();
    store = std::make_unique<test::FileJobStore>();
    for (int rank = 0; rank < ranks; ++rank)
      members.emplace_back([&, rank](int pipe) {
        try {
          rpc::Job job(options_in_process(store->url, rank, ranks), company_layers());
          job.join().get();
          const Group group = Group::create(job.agent(), options_of(GetParam(), rank)).get();
          const auto say = [pipe](const std::string& text) { test::say(pipe, text); };
          body(group, say);
          job.serve_until_shutdown();
        } catch (const std::exception& error) {
          test::say(pipe, std::string("failed: ") + error.what());
        }
        ::_exit(0);
      });
  }
  std::unique_ptr<test::FileJobStore> store;
  std::deque<test::Child> members;
};
INSTANTIATE_TEST_SUITE_P(Backends, Processes, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

// There are more processes than most machines have cores, and each runs at its own speed.
TEST_P(Processes, ReduceAndGather) {
  constexpr int ranks = 6;
  start(ranks, [](const Group& group, const auto& say) {
    const GroupBackend backend = expected(GetParam(), ranks);
    for (int round = 0; round < 10; ++round)
      for (const std::int64_t n : {5, 20'000, 300'000}) {
        at::Tensor tensor =
            round % 2 == 0 ? values(group.rank(), {n}) : group.empty({n}).copy_(values(group.rank(), {n}));
        auto reduced = group.all_reduce(tensor);
        at::Tensor all = at::zeros({ranks, 3});
        auto gathered = group.all_gather(all, values(group.rank() + round, {3}));
        reduced.get(), gathered.get();
        if (!at::equal(tensor, sum_of(ranks, {n}))) return say("a wrong sum");
        if (!at::equal(all[4], values(4 + round, {3}))) return say("wrong parts");
      }
    say(group.backend() == backend ? "well" : "not by the memory that was asked for");
  });
  for (test::Child& member : members) EXPECT_EQ(member.line(), "well");
}

// The victim is killed at any time: before the first operation, during one, or between two.
TEST_P(Processes, AKilledProcessIsNamedToAllOthers) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    const int ranks = on_hosts(GetParam()) ? 4 : 2 + static_cast<int>(random() % 3),
              victim = static_cast<int>(random() % ranks);
    const std::uint64_t last = random() % 60, steps = random() % 200'000;
    const std::int64_t n = random() % 2 == 0 ? 100 : 400'000;
    start(ranks, [&](const Group& group, const auto& say) {
      const std::string name = "worker" + std::to_string(victim);
      std::mt19937_64 operations(seed);  // the same on all
      std::thread killer;
      try {
        for (std::uint64_t round = 0;; ++round) {
          if (group.rank() == victim && round == last)
            killer = std::thread([steps] {  // kills the process after a random time
              std::atomic<std::uint64_t> counted{0};
              while (++counted < steps) {
              }
              ::kill(::getpid(), SIGKILL);
            });
          const GroupOperation& operation = group_operations[operations() % std::size(group_operations)];
          Begun begun =
              operation.begin(group, {.n = n, .number = static_cast<int>(round), .placed = round % 2 == 0});
          begun.done.get();
          if (begun.right()) continue;
          say(std::string("a wrong result of ") + operation.name);
          break;
        }
      } catch (const rpc::Error& error) {
        const bool named = std::string(error.what()).find(name) != std::string::npos;
        say(error.kind() == ErrorKind::peer_lost && named ? "well" : error.what());
      }
      if (killer.joinable()) killer.join();
      while (true) ::pause();  // the exit of this process could be reported before that of the victim
    });
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_EQ(members[static_cast<std::size_t>(rank)].line(), rank == victim ? "" : "well") << rank;
  }
}

// Stops the process of a rank. Expects that all other ranks, which repeat this, fail at its deadline with an
// error that has all words. A stopped process is alive, so its peers wait for it until their deadline.
class StoppedProcesses : public Processes {
 protected:
  void expect_named(int stopped, const std::function<void(const Group&)>& repeat,
                    const std::vector<std::string>& words) {
    const int ranks = few(GetParam());
    start(ranks, [&](const Group& group, const auto& say) {
      group.barrier().get();
      say("met");
      try {
        while (true) repeat(group);
      } catch (const rpc::Error& error) {
        const std::string text = error.what();
        const bool named = std::all_of(words.begin(), words.end(), [&](const std::string& word) {
          return text.find(word) != std::string::npos;
        });
        say(error.kind() == ErrorKind::deadline_exceeded && named ? "well" : text);
      }
    });
    for (test::Child& member : members) EXPECT_EQ(member.line(), "met");
    members[static_cast<std::size_t>(stopped)].stop();
    for (int rank = 0; rank < ranks; ++rank)
      if (rank != stopped) {
        EXPECT_EQ(members[static_cast<std::size_t>(rank)].line(), "well") << rank;
      }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, StoppedProcesses, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

TEST_P(StoppedProcesses, AreNamedAtTheDeadline) {
  expect_named(1,
               [](const Group& group) { group.all_reduce(at::ones({100'000}), ReduceOp::sum, 300ms).get(); },
               {"rank 1 (worker1)"});
}

// Rank 0 gathers the values and names missing ranks. If rank 0 itself is stopped, the senders name it. Object
// collectives use messages, whichever backend the tensors use.
class ProcessesOfMessages : public StoppedProcesses {};
INSTANTIATE_TEST_SUITE_P(Backends, ProcessesOfMessages, ::testing::Values(Backend::messages),
                         ::testing::PrintToStringParamName());

TEST_P(ProcessesOfMessages, AStoppedRankZeroIsNamedByTheRanksThatSendItObjects) {
  expect_named(0, [](const Group& group) { group.all_gather_object(group.rank(), 300ms).get(); },
               {"all_gather_object(", "rank 0 (worker0) does not answer"});
}

}  // namespace group_process_test
}  // namespace weft::collectives::testing

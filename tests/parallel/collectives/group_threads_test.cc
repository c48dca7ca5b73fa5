// Groups that several threads of each member use at once.
#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <filesystem>
#include <future>
#include <mutex>
#include <thread>

#include "tests/parallel/collectives/operations.h"

namespace weft::collectives::testing {
namespace group_threads_test {

constexpr int threads = 3;
constexpr std::size_t operations = std::size(group_operations);

class GroupThreads : public OfFew {
 protected:
  // Calls f(rank, thread) on `threads` threads of each member at once, and throws the exception of any of
  // them.
  template <class F>
  void at_once(F f) {
    std::vector<std::thread> running;
    std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks * threads));
    for (int rank = 0; rank < ranks; ++rank)
      for (int thread = 0; thread < threads; ++thread)
        running.emplace_back([&, rank, thread, &error = errors[rank * threads + thread]] {
          error = rpc::capture([&] { f(rank, thread); }).error();
        });
    for (std::thread& each : running) each.join();
    for (const std::exception_ptr& error : errors)
      if (error != nullptr) std::rethrow_exception(error);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, GroupThreads, ::testing::ValuesIn(all_backends),
                         ::testing::PrintToStringParamName());

struct Later {
  const char* name;
  Begun begun;
};
void expect_right(std::vector<Later> all, int rank) {
  for (auto& [name, begun] : all) {
    got(std::move(begun.done));
    EXPECT_TRUE(begun.right()) << name << " at rank " << rank;
  }
}

// Each thread uses another order. Some wait for each operation, and some for several.
TEST_P(GroupThreads, MayHaveAGroupEach) {
  std::vector<std::vector<Group>> own;
  for (int thread = 0; thread < threads; ++thread)
    own.push_back(company.groups({.name = "of thread " + std::to_string(thread)}));
  at_once([&](int rank, int thread) {
    std::vector<Later> later;
    for (std::size_t i = 0; i < 5 * operations; ++i) {
      const GroupOperation& operation =
          group_operations[(i * 7 + static_cast<std::size_t>(thread)) % operations];
      const Round round{.n = i % 4 == 0 ? 40'000 : 10,
                        .number = static_cast<int>(i) * threads + thread,
                        .placed = i % 3 == 0};
      later.push_back({operation.name, operation.begin(own[thread][rank], round)});
      if (later.size() > static_cast<std::size_t>(4 * thread)) expect_right(std::exchange(later, {}), rank);
    }
    expect_right(std::move(later), rank);
  });
}

// Runs the operations of all threads in the program's order, which is the same on all ranks.
class Order {
 public:
  template <class F>
  void run(int turn, F f) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return next_ == turn; });
    f();
    ++next_;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  int next_ = 0;
};

// Two groups, both used by all threads. Collectives start in order, and the threads wait for them out of
// order. Messages need no order: each thread has its own tag.
TEST_P(GroupThreads, MayShareGroups) {
  const std::vector<Group> others = company.groups({.name = "other"});
  std::deque<Order> orders(static_cast<std::size_t>(ranks));
  at_once([&](int rank, int thread) {
    std::vector<Later> later;
    for (int i = 0; i < 80; ++i) {
      const int turn = i * threads + thread;
      const Group& group = (turn / 2 % 2 == 0 ? groups : others)[rank];
      const GroupOperation& operation = group_operations[static_cast<std::size_t>(turn) % operations];
      const Round round{.n = turn % 4 == 0 ? 40'000 : 10,
                        .number = turn,
                        .tag = static_cast<std::uint64_t>(thread),
                        .placed = turn % 5 == 0};
      const at::Tensor message = at::zeros({5});
      const std::uint64_t tag = 100 + static_cast<std::uint64_t>(thread);
      auto sent = group.send(at::full({5}, static_cast<float>(i)), right_of(group), tag);
      auto received = group.recv(message, left_of(group), tag);
      orders[rank].run(turn, [&] { later.push_back({operation.name, operation.begin(group, round)}); });
      got(std::move(sent)), got(std::move(received));
      EXPECT_TRUE(all_are(message, static_cast<float>(i))) << "rank " << rank << ", thread " << thread;
      if (i % 8 == thread) expect_right(std::exchange(later, {}), rank);
    }
    expect_right(std::move(later), rank);
  });
}

// A loss fails the operations for which all threads wait.
TEST_P(GroupThreads, AreAllNotifiedOfALoss) {
  std::vector<std::vector<Group>> own;
  for (int thread = 0; thread < threads; ++thread)
    own.push_back(company.groups({.name = "of thread " + std::to_string(thread)}));
  test::Event underway;
  std::atomic<int> begun{0};
  std::thread killer([&] {
    underway.wait();
    company.end(2);
  });
  at_once([&](int rank, int thread) {
    const auto error = error_of([&] {
      for (std::size_t i = 0;; ++i) {
        const Round round{.n = i % 2 == 0 ? 40'000 : 10, .number = static_cast<int>(i)};
        Begun next = group_operations[(i + static_cast<std::size_t>(thread)) % operations].begin(
            own[thread][rank], round);
        if (++begun == 200) underway.set();
        got(std::move(next.done));
        EXPECT_TRUE(next.right());
      }
    });
    ASSERT_TRUE(error);
    if (rank == 2) return;
    EXPECT_EQ(error->kind(), ErrorKind::peer_lost) << error->what();
    EXPECT_NE(std::string(error->what()).find("worker2"), std::string::npos) << error->what();
  });
  killer.join();
}

// --- The thread on which a collective runs ---

// Blocks a thread until the test releases it.
struct Block {
  std::promise<void> reached, released;
  void hold() {
    reached.set_value();
    released.get_future().wait();
  }
  void await() { reached.get_future().wait(); }
  void release() { released.set_value(); }
};

TEST(GroupsOnTheCallersThread, RunOnlyWhenInlined) {
  Company company(1);
  const auto groups = company.groups();
  Block loop;
  company.agent(0).core()->loops().front()->post([&] { loop.hold(); });
  loop.await();
  auto first = groups[0].all_reduce(at::ones({4}));
  EXPECT_FALSE(first.ready());
  auto second = groups[0].inlined().all_reduce(at::ones({4}));
  EXPECT_TRUE(first.ready() && second.ready()) << "in the order in which they were started";
  auto third = groups[0].barrier();
  EXPECT_FALSE(third.ready());
  loop.release();
  got(std::move(third));
}

TEST(GroupsOnTheCallersThread, RunOnlyWhenInlinedInMemory) {
  Company company(2, Backend::memory);
  const auto groups = company.groups();
  Block thread;  // blocks the thread of rank 0's group
  groups[0].barrier().then([&](rpc::Result<void>&&) { thread.hold(); });
  got(groups[1].barrier());
  thread.await();
  Futures futures;
  for (const int rank : {1, 0}) futures.push_back(groups[rank].all_reduce(at::ones({4})));
  EXPECT_FALSE(futures.back().ready());
  thread.release();
  for (auto& future : futures) got(std::move(future));
}

std::shared_ptr<GroupCore> core_of(Company& company, const Group& group) {
  for (const auto& core : CollectivesLayer::of(*company.agent(group.rank()).core())->all())
    if (core->name() == group.name()) return core;
  return nullptr;
}

// A call that ends a group, or reads its state, runs while a collective waits for the loop.
TEST(GroupsOnTheCallersThread, RunNoOtherCollectivesWhenAGroupEndsOrIsInspected) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("weft-callers-thread-" + std::to_string(::getpid()));
  using Call = std::function<void(Company&, const Group&, const Group& other)>;
  const std::pair<const char*, Call> calls[] = {
      {"abort", [](Company&, const Group& group, const Group&) { group.abort("enough"); }},
      {"fail",
       [](Company& company, const Group& group, const Group&) {
         core_of(company, group)->failure().fail(rpc::Error(ErrorKind::internal, "an error of a device"));
       }},
      {"leave", [](Company& company, const Group& group,
                   const Group&) { (void)core_of(company, group)->failure().leave(); }},
      {"write_flight", [&](Company&, const Group& group, const Group&) { (void)group.write_flight(folder); }},
      // The dump includes all groups of the agent.
      {"abort of another group", [](Company&, const Group&, const Group& other) { other.abort("enough"); }}};
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    Company company(1);
    const auto groups = company.groups({.flight_recorder_dir = folder}),
               others = company.groups({.name = "other", .flight_recorder_dir = folder});
    test::HeldLoop held(company.agent(0));
    auto waiting = groups[0].all_reduce(at::ones({4}));
    call(company, groups[0], others[0]);
    EXPECT_FALSE(waiting.ready());
    held.release();
    got(std::move(waiting));
  }
  std::filesystem::remove_all(folder);
}

TEST(GroupsOnTheCallersThread, StartNoMessagesAndNoObjectCollectives) {
  Company company(2);
  const auto groups = company.groups();
  const auto begun = [&] { return core_of(company, groups[0])->failure().flight().records.entries.size(); };
  test::HeldLoop held(company.agent(0));
  const at::Tensor one = at::ones({4});
  Futures futures;
  futures.push_back(groups[0].send(one, 1));
  futures.push_back(groups[0].recv(at::zeros({4}), 1));
  futures.push_back(groups[0].batch({{PointToPoint::Kind::send, one, 1, 2}}));
  futures.push_back(groups[0].send_object(std::string("text"), 1, 3));
  auto any = groups[0].recv_any(at::zeros({4}), 4);
  auto object = groups[0].recv_object<std::string>(1, 5);
  auto objects = groups[0].all_gather_object(0);
  EXPECT_EQ(begun(), 0U);
  held.release();
  futures.push_back(groups[1].recv(at::zeros({4}), 0));
  futures.push_back(groups[1].send(one, 0));
  futures.push_back(groups[1].recv(at::zeros({4}), 0, 2));
  auto text = groups[1].recv_object<std::string>(0, 3);
  futures.push_back(groups[1].send(one, 0, 4));
  futures.push_back(groups[1].send_object(std::string("more"), 0, 5));
  auto theirs = groups[1].all_gather_object(1);
  for (auto& future : futures) got(std::move(future));
  EXPECT_EQ(got(std::move(any)), 1);
  EXPECT_EQ(got(std::move(object)), "more");
  EXPECT_EQ(got(std::move(text)), "text");
  EXPECT_EQ(got(std::move(objects)), (std::vector<int>{0, 1}));
  EXPECT_EQ(got(std::move(theirs)), (std::vector<int>{0, 1}));
  EXPECT_EQ(begun(), 7U);
}

}  // namespace group_threads_test
}  // namespace weft::collectives::testing

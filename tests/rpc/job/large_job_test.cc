// A job of a few hundred agents over TCP, whose store rank 0 keeps. All members join, all read the store at
// the same time, and some die. All members except rank 0 share one thread. Each has its own connections,
// descriptors and lease.
#include <weft/rpc/job/store/remote_store.h>

#include <cstdio>
#include <ctime>
#include <filesystem>

#include "tests/support/cluster.h"
#include "tests/support/job.h"
#include "tests/support/sanitizer.h"
#include "tests/support/shared_loop.h"

namespace weft::rpc::large_job_test {
namespace {

using namespace test;

// Under ThreadSanitizer 256 members take 23 s of a core.
constexpr std::size_t members = test::under_tsan ? 128 : 256;
// Both ends of a connection to rank 0 and of one to the leader of a barrier, and where each listens.
constexpr std::size_t descriptors_each = 5;

// TCP whose connections can be cut, as a network does it: without a goodbye on either side.
class CutTransport final : public Transport {
 public:
  std::string_view scheme() const override { return tcp_->scheme(); }
  void connect(const Address& address, std::shared_ptr<Loop> loop, const ConnectionOptions& options,
               Connected done) override {
    tcp_->connect(address, std::move(loop), options,
                  [made = made_, done = std::move(done)](Result<std::shared_ptr<Connection>> result) mutable {
                    if (result.ok()) made->push_back(result.value());
                    done(std::move(result));
                  });
  }
  void shut_down() override { tcp_->shut_down(); }
  std::unique_ptr<Listener> listen(const Address& address, PickLoop pick, const ConnectionOptions& options,
                                   bool allow_remote, Accepted accepted) override {
    return tcp_->listen(address, std::move(pick), options, allow_remote,
                        [made = made_, accepted = std::move(accepted)](std::shared_ptr<Connection> one) {
                          made->push_back(one);
                          accepted(std::move(one));
                        });
  }
  void cut() {  // on the loop
    for (const auto& weak : *made_)
      if (const auto connection = weak.lock()) connection->close(Error(ErrorKind::unavailable, "cut"));
  }

 private:
  const std::unique_ptr<Transport> tcp_ = make_tcp_transport();
  const std::shared_ptr<std::vector<std::weak_ptr<Connection>>> made_ =
      std::make_shared<std::vector<std::weak_ptr<Connection>>>();
};

// Returns the number of reports until the keys of all members have been seen.
Task<std::size_t> see_all(Store* store, std::string prefix, std::size_t all) {
  std::map<std::string, std::string> seen;
  std::size_t looks = 0;
  for (std::uint64_t version = 0; seen.size() < all; ++looks) {
    const StoreChanges changes = co_await store->watch(prefix, version);
    changes.apply_to(seen);
    version = changes.version;
  }
  co_return looks;
}

class LargeJob : public testing::Test {
 protected:
  struct Member {
    std::shared_ptr<CutTransport> network = std::make_shared<CutTransport>();
    std::unique_ptr<Agent> agent;
    std::unique_ptr<MemberWatch> watch;
  };

  void SetUp() override {
    if (test::descriptors_permitted(members * descriptors_each + 200) < members * descriptors_each + 200)
      GTEST_SKIP() << "too few file descriptors are permitted";
  }
  ~LargeJob() override {
    loop_.run([this] { others_.clear(); });
  }

  // Begins the operation on all members, then waits for each.
  template <class F>
  auto each(F begin) {
    std::vector<decltype(begin(*host_))> futures;
    futures.push_back(begin(*host_));
    for (auto& [rank, member] : others_) futures.push_back(begin(*member.agent));
    if constexpr (std::is_same_v<decltype(begin(*host_)), Future<void>>) {
      for (auto& future : futures) got(std::move(future));
    } else {
      std::vector<decltype(got(begin(*host_)))> results;
      for (auto& future : futures) results.push_back(got(std::move(future)));
      return results;
    }
  }
  void start(bool fixed_world) {
    host_ = std::make_unique<Agent>(options(0), Layers{job_layer(0, fixed_world)});
    for (std::size_t rank = 1; rank < members; ++rank) {
      Member& member = others_[rank];
      member.agent = std::make_unique<Agent>(loop_.runtime(member.network), options(rank),
                                             Layers{job_layer(rank, fixed_world)});
      names_.push_back(member.agent->name());
    }
    each([](Agent& agent) { return rpc::Job(agent).wait_for(members); });
    told("all have joined");
  }
  AgentOptions options(std::size_t rank) const {
    AgentOptions options{.name = name_of(rank), .same_host = false, .handler_threads = 1};
    options.listen = {rank == 0 ? store_.url : "tcp://127.0.0.1:0"};
    options.log = [](const LogRecord&) {};
    // Long timeouts: a busy machine must not cause losses.
    options.handshake_timeout = options.heartbeat.timeout = std::chrono::hours{1};
    return options;
  }
  Layer job_layer(std::size_t rank, bool fixed_world) const {
    return rpc::Job::layer({.store = store_.url,
                            .rank = rank == 0 || fixed_world ? rank : Rendezvous::no_rank,
                            .world_size = fixed_world ? members : 0,
                            .fixed_world = fixed_world,
                            .lease = std::chrono::hours{1}});
  }
  static std::string name_of(std::size_t rank) { return "worker" + std::to_string(rank); }

  Agent& agent(std::size_t rank) { return rank == 0 ? *host_ : *others_.at(rank).agent; }
  // Prints the time to the log of the test.
  void told(const std::string& what) {
    const auto now = Clock::now();
    const std::clock_t worked = std::clock();
    const auto took = std::chrono::duration<double>(now - std::exchange(before_, now)).count();
    const double work = static_cast<double>(worked - std::exchange(worked_before_, worked)) / CLOCKS_PER_SEC;
    const auto files = std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
    std::printf("  %.2f s, of a core %.2f s: %s; rank 0 has %llu connections, the process %td descriptors\n",
                took, work, what.c_str(), static_cast<unsigned long long>(host_->counts().connections),
                files);
  }
  // The ranks of the faulty members.
  static std::set<std::size_t> some(std::size_t first) {
    std::set<std::size_t> ranks;
    for (std::size_t rank = first; rank < members; rank += members / 8) ranks.insert(rank);
    return ranks;
  }

  const test::TcpJobStore store_;
  std::unique_ptr<Agent> host_;
  test::SharedLoop loop_;
  std::map<std::size_t, Member> others_;
  std::vector<std::string> names_;  // of all but rank 0
  Clock::time_point before_ = Clock::now();
  std::clock_t worked_before_ = std::clock();
};

TEST_F(LargeJob, RunsCollectivesUsesItsStoreAndSurvivesDeaths) {
  start(false);
  std::vector<std::string> all = names_;
  all.push_back(name_of(0));
  each([&](Agent& agent) { return rpc::Job(agent).barrier({.among = all}); });
  told("a barrier of all, led by rank 0");
  const auto gathered =
      each([&](Agent& agent) { return rpc::Job(agent).all_gather(agent.name() + "'s", {.among = all}); });
  for (const auto& values : gathered) {
    ASSERT_EQ(values.size(), members);
    for (const auto& [name, value] : values) ASSERT_EQ(value, name + "'s");
  }
  told("an all_gather of all, led by rank 0");

  // Each member waits for one key, then for two others, and watches all keys. Then each member sets one key.
  std::vector<std::unique_ptr<RemoteStore>> stores;
  for (auto& [rank, member] : others_)
    stores.push_back(std::make_unique<RemoteStore>(member.agent->peer(name_of(0))));
  std::vector<Future<std::string>> gets;
  std::vector<Future<void>> waits;
  std::vector<Future<std::size_t>> watches;
  const auto key = [&](std::size_t i) { return "test/" + std::to_string(i % stores.size()); };
  for (std::size_t i = 0; i < stores.size(); ++i) {
    gets.push_back(stores[i]->get(key(i + 1)));
    waits.push_back(stores[i]->wait({key(i + 2), key(i + 3)}));
    watches.push_back(see_all(stores[i].get(), "test/", stores.size()).start(loop_.handlers()));
  }
  eventually("all wait", [&] { return host_->counts().serving >= 3 * stores.size(); });
  told("each waits for keys of rank 0's store, and watches them");
  std::vector<Future<void>> sets;
  for (std::size_t i = 0; i < stores.size(); ++i) sets.push_back(stores[i]->set(key(i), std::to_string(i)));
  for (auto& set : sets) got(std::move(set));
  for (std::size_t i = 0; i < stores.size(); ++i)
    EXPECT_EQ(got(std::move(gets[i])), std::to_string((i + 1) % stores.size()));
  for (auto& wait : waits) got(std::move(wait));
  std::size_t looks = 0;
  for (auto& watch : watches) looks += got(std::move(watch));
  told("each has set a key, and seen those of all in " + std::to_string(looks / stores.size()) + " looks");

  // Half of the faulty members die at once. The other half live, but their connections are cut.
  for (auto& [rank, member] : others_) member.watch = rpc::Job(*member.agent).watch_members();
  for (auto& [rank, member] : others_) ASSERT_EQ(got(member.watch->next()).size(), members);
  const std::set<std::size_t> dead = some(2), cut = some(3);
  std::vector<std::pair<std::size_t, Future<void>>> barriers;  // led by the first of these by name
  for (auto& [rank, member] : others_)
    if (!dead.contains(rank) && !cut.contains(rank))
      barriers.emplace_back(rank, rpc::Job(*member.agent).barrier({.among = names_}));
  loop_.run([&] {
    for (const std::size_t rank : dead) others_.erase(rank);
    for (const std::size_t rank : cut) others_.at(rank).network->cut();
  });
  for (auto& [rank, barrier] : barriers) {
    const auto error = test::error_of([&barrier = barrier] { return got(std::move(barrier)), 0; });
    ASSERT_TRUE(error) << rank;
    EXPECT_EQ(error->kind(), ErrorKind::peer_lost) << rank << ": " << error->what();
  }
  told("a barrier that " + std::to_string(dead.size() + cut.size()) + " did not live to ends for all");
  for (const std::size_t rank : cut)
    EXPECT_EQ(test::kind_of([&] {
                for (;;) got(others_.at(rank).watch->next());
                return 0;
              }),
              ErrorKind::lease_lost)
        << rank;
  told("those whose connections were cut hear that they are lost");
  std::set<std::string> expected;
  for (const auto& ranks : {dead, cut})
    for (const std::size_t rank : ranks) expected.insert(name_of(rank));
  loop_.run([&] {
    for (const std::size_t rank : cut) others_.erase(rank);
  });
  for (auto& [rank, member] : others_) {
    std::multiset<std::string> lost;
    while (lost.size() < expected.size())
      for (const MemberEvent& event : got(member.watch->next())) {
        EXPECT_EQ(event.change, MemberChange::lost);
        lost.insert(event.member.name);
      }
    EXPECT_EQ(lost, std::multiset<std::string>(expected.begin(), expected.end())) << rank;
  }
  told("every survivor has heard of every death");
  std::vector<std::string> survivors{name_of(0)};
  for (auto& [rank, member] : others_) survivors.push_back(member.agent->name());
  EXPECT_EQ(each([&](Agent& agent) {
              return rpc::Job(agent).all_gather(rpc::Job(agent).rank(), {.among = survivors});
            })
                .back()
                .size(),
            members - expected.size());
  told("an all_gather of those who are left");

  std::thread host([&] { rpc::Job(*host_).serve_until_shutdown(); });
  std::vector<Future<void>> left;
  for (auto& [rank, member] : others_) left.push_back(member.agent->leave());
  for (auto& one : left) got(std::move(one));
  host.join();
  told("all have left");
}

TEST_F(LargeJob, OfFixedSizeFailsOnAllMembersWithTheNameOfTheLostOne) {
  start(true);
  const auto ranks = each([](Agent& agent) { return rpc::Job(agent).all_gather(rpc::Job(agent).rank()); });
  for (const auto& values : ranks) {
    ASSERT_EQ(values.size(), members);
    for (const auto& [name, rank] : values) ASSERT_EQ(name, name_of(rank));
  }
  told("an all_gather of all");
  constexpr std::size_t lost = members - 1;
  std::vector<std::pair<std::size_t, Future<void>>> barriers;
  for (std::size_t rank = 0; rank < members; ++rank)
    if (rank != lost) barriers.emplace_back(rank, rpc::Job(agent(rank)).barrier());
  loop_.run([&] { others_.erase(lost); });
  for (auto& [rank, barrier] : barriers)
    test::expect_error(std::move(barrier), ErrorKind::peer_lost, name_of(lost) + " was lost", name_of(rank));
  for (std::size_t rank = 0; rank < lost; ++rank)
    eventually("the world has failed", [&] { return agent(rank).core()->job_error().has_value(); });
  told("all have heard of a death");
}

}  // namespace
}  // namespace weft::rpc::large_job_test

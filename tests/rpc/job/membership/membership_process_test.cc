// Jobs of several processes that die; and jobs that meet in etcd.
#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/job/store/etcd_store.h>
#include <weft/rpc/job/store/program_store.h>

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>

#include "tests/support/child.h"
#include "tests/support/elastic_world_suite.h"
#include "tests/support/etcd_server.h"

namespace weft::test {

// Starting etcd takes half a second, so the tests share one server. Each test uses a separate prefix.
struct EtcdJobStore : JobStore {
  EtcdJobStore() {
    static EtcdServer server;
    static int jobs = 0;
    url = server.url("job" + std::to_string(++jobs));
  }
};
JobKind etcd_kind() {
  JobKind kind = job_kind<EtcdJobStore>("etcd");
  kind.missing = [] { return EtcdServer::installed() ? "" : "etcd is not installed (Debian: etcd-server)"; };
  return kind;
}

}  // namespace weft::test

namespace weft::rpc::membership_process_test {
namespace {

using namespace std::chrono_literals;
using test::Worker;

// A program's store of several processes: a file for its one key.
class FileTable final : public ProgramStore {
 public:
  explicit FileTable(std::filesystem::path folder) : folder_(std::move(folder)) {}
  void set(const std::string&, const std::string& value) override {
    std::ofstream(folder_ / "new") << value;
    std::filesystem::rename(folder_ / "new", folder_ / "value");
  }
  std::optional<std::string> get(const std::string&, std::chrono::nanoseconds) override {
    std::ifstream file(folder_ / "value");
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  const std::filesystem::path folder_;
};

// This process has no other thread yet, so a child may call any function.
class MembershipProcesses : public testing::Test {
 protected:
  static constexpr std::size_t no_rank = Rendezvous::no_rank;

  ~MembershipProcesses() override {
    for (const pid_t child : children_) ::kill(child, SIGKILL), ::waitpid(child, nullptr, 0);
  }
  static MemberOptions options(const test::JobStore& store, std::size_t rank, std::size_t world) {
    MemberOptions options{{.name = "worker" + std::to_string(rank), .handler_threads = 1}};
    options.listen = {rank == 0 ? store.url : "tcp://127.0.0.1:0"};
    // 64 processes dial each other at once.
    options.connect_timeout = options.handshake_timeout = test::too_long;
    options.rendezvous = {.store = store.url, .rank = rank, .world_size = world, .fixed_world = world != 0};
    return options;
  }
  template <class F>
  pid_t start(F body) {
    const pid_t child = ::fork();
    if (child != 0) return children_.emplace_back(child);
    test::run_as_child(body, std::chrono::seconds{300});
  }
  int wait_for(pid_t child) {
    int status = -1;
    ::waitpid(child, &status, 0);
    std::erase(children_, child);
    return status;
  }

  std::vector<pid_t> children_;
};

TEST_F(MembershipProcesses, SixtyFourProcessesJoinAndCallEachOther) {
  constexpr std::size_t world = 64;
  const test::TcpJobStore store;
  std::vector<pid_t> children;
  for (std::size_t rank = 0; rank < world; ++rank)
    children.push_back(start([&store, rank] {
      rpc::Job job(options(store, rank, world));
      job.agent().serve(std::make_shared<Worker>(job.name()));
      job.wait_for(world).get();
      std::vector<Future<std::string>> calls;
      for (std::size_t to = 0; to < world; ++to)
        calls.push_back(job.agent().peer("worker" + std::to_string(to)).call<&Worker::who>());
      for (std::size_t to = 0; to < world; ++to)
        if (calls[to].get() != "worker" + std::to_string(to)) throw std::runtime_error("not who was called");
      job.serve_until_shutdown();
    }));
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
}

TEST_F(MembershipProcesses, AKilledRankZeroThatAProgramsStoreNamesIsReported) {
  const auto folder = std::filesystem::path(testing::TempDir()) / ("file_table" + std::to_string(::getpid()));
  std::filesystem::create_directories(folder);
  const auto member = [&folder](std::size_t rank) {
    MemberOptions mine{
        {.name = "worker" + std::to_string(rank), .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1}};
    mine.rendezvous = {.rank = rank, .world_size = 3, .program_store = std::make_shared<FileTable>(folder)};
    return mine;
  };
  const pid_t host = start([&] {
    rpc::Job job(member(0));
    job.join().get();
    for (;;) ::pause();
  });
  const auto reports_the_loss = [&member](std::size_t rank, const std::function<void()>& joined) {
    rpc::Job job(member(rank));
    job.join().get();
    joined();
    const auto watch = job.watch_members();
    try {
      for (;;) watch->next().get();
    } catch (const Error& error) {
      return std::string(to_string(error.kind())) + " " + error.what();
    }
  };
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  const pid_t other = start([&] {
    const std::string text = reports_the_loss(1, [&] {
      if (::write(gate[1], "", 1) != 1) throw std::runtime_error("the gate is gone");
    });
    if (!text.starts_with("peer_lost")) throw std::runtime_error("another error: " + text);
  });
  const std::string text = reports_the_loss(2, [&] {
    char byte;
    EXPECT_EQ(::read(gate[0], &byte, 1), 1);
    ::kill(host, SIGKILL);
  });
  EXPECT_TRUE(text.starts_with("peer_lost")) << text;
  EXPECT_NE(text.find("worker0"), std::string::npos) << text;
  EXPECT_EQ(wait_for(other), 0);
  for (const int end : gate) ::close(end);
  std::filesystem::remove_all(folder);
}

// One member is killed. A second member joins once the first is lost, is stopped for longer than its lease,
// and then continues. The others see both as lost. The second member fails with `lease_lost`, even if it is
// stopped while it joins.
TEST_F(MembershipProcesses, AKilledAndAStoppedMemberAreReported) {
  test::TcpJobStore store;
  const auto body = [&store](std::chrono::nanoseconds lease, const char* name) {
    MemberOptions mine = options(store, no_rank, 0);
    mine.name = name;
    mine.rendezvous.lease = lease;
    try {
      rpc::Job job(mine);
      job.wait_for(1).get();
      auto watch = job.watch_members();
      for (;;) watch->next().get();
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::lease_lost) throw;
    }
  };
  int gate[2];
  ASSERT_EQ(::pipe(gate), 0);
  const pid_t killed = start([&] { body(1h, "killed"); });
  const pid_t stopped = start([&] {
    char byte;
    if (::read(gate[0], &byte, 1) != 1) throw std::runtime_error("the gate is gone");
    body(test::short_lease, "stopped");
  });
  rpc::Job host(options(store, 0, 0));
  host.wait_for(2).get();
  test::History seen(host.agent());
  seen.until(2);
  ::kill(killed, SIGKILL);
  EXPECT_NE(wait_for(killed), 0);
  seen.until(3);
  EXPECT_EQ(::write(gate[1], "", 1), 1);
  seen.until(4);
  ::kill(stopped, SIGSTOP);
  seen.until(5);
  EXPECT_EQ(seen.text(), "killed joined, worker0 joined, killed lost, stopped joined, stopped lost");
  ::kill(stopped, SIGCONT);
  EXPECT_EQ(wait_for(stopped), 0);  // it was notified
  for (const int end : gate) ::close(end);
}

// The keeper of the store of an elastic world is killed: serve_until_shutdown() and a barrier that awaits the
// keeper end with the lease, and later barriers of living members pass.
TEST_F(MembershipProcesses, MembersSurviveTheDeathOfTheStoresKeeper) {
  const test::TcpJobStore store;
  const pid_t keeper = start([&] {
    rpc::Job host(options(store, 0, 0));
    host.wait_for(3).get();
    for (;;) ::pause();
  });
  const auto member = [&](const char* name) {
    MemberOptions mine = options(store, no_rank, 0);
    mine.name = name;
    mine.rendezvous.lease = test::short_lease;
    return std::make_unique<rpc::Job>(mine);
  };
  const auto anna = member("anna"), bert = member("bert");
  auto anna_met = anna->wait_for(3), bert_met = bert->wait_for(3);
  test::got(std::move(anna_met));
  test::got(std::move(bert_met));
  auto serves = std::async(std::launch::async, [&] {
    return test::kind_of([&] { return anna->serve_until_shutdown(test::too_long); });
  });
  auto with_the_keeper =
      anna->barrier({.name = "worker0", .among = {"anna", "worker0"}, .timeout = test::too_long});
  ::kill(keeper, SIGKILL);
  wait_for(keeper);
  EXPECT_EQ(test::kind_of([&] { test::got(std::move(with_the_keeper)); }), ErrorKind::unavailable);
  EXPECT_EQ(serves.get(), ErrorKind::unavailable);
  auto one = anna->barrier({.among = {"anna", "bert"}, .timeout = test::too_long});
  test::got(bert->barrier({.among = {"anna", "bert"}, .timeout = test::too_long}));
  test::got(std::move(one));
}

}  // namespace
}  // namespace weft::rpc::membership_process_test

namespace weft::test {

INSTANTIATE_TEST_SUITE_P(Stores, ElasticWorld, testing::Values(etcd_kind()),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(EtcdJob, AFixedWorldJoinsCallsAndRemovesItsKeys) {
  const JobKind kind = etcd_kind();
  if (const char* missing = kind.missing(); *missing != '\0') GTEST_SKIP() << missing;
  Job job(kind, 3);
  job.start_all();
  for (std::size_t from = 0; from < 3; ++from)
    for (std::size_t to = 0; to < 3; ++to)
      EXPECT_EQ(got(job[from].peer("worker" + std::to_string(to)).call<&Worker::who>()),
                "worker" + std::to_string(to));
  std::thread host([&] { rpc::Job(job[0]).serve_until_shutdown(); });
  for (const std::size_t rank : {1, 2}) got(job[rank].leave());
  host.join();
  const auto loop = std::make_shared<rpc::AsioLoop>();
  {
    rpc::EtcdStore store(loop, rpc::EtcdStore::options_of(job.store().url));
    EXPECT_TRUE(got(store.list("")).entries.empty());
  }
  loop->stop();
}

TEST(EtcdJob, EveryMemberOfAFixedWorldLearnsTheLostMember) {
  const JobKind kind = etcd_kind();
  if (const char* missing = kind.missing(); *missing != '\0') GTEST_SKIP() << missing;
  Job job(kind, 3);
  job.start_all();
  auto to_survivor = job[0].peer("worker1").call<&Worker::hang>();
  job.worker(1).await_calls(1);
  job.end(2);
  expect_error(std::move(to_survivor), rpc::ErrorKind::peer_lost, "worker2 was lost");
  eventually("worker1 knows it too", [&] { return job[1].core()->job_error().has_value(); });
}

}  // namespace weft::test

// Jobs whose members meet through a key-value store of the program.
#include <weft/rpc/job/store/program_store.h>

#include <weft/rpc/job/environment.h>
#include <weft/rpc/job/store/store.h>
#include <weft/rpc/transport/address.h>

#include "tests/support/cluster.h"
#include "tests/support/job.h"
#include "tests/support/shm.h"

namespace weft::rpc::program_store_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using rpc::Job;

// A store of the program, as c10d::HashStore. Its operations may fail or hang.
class Table final : public ProgramStore {
 public:
  void set(const std::string& key, const std::string& value) override {
    std::unique_lock lock(mutex_);
    fail_or_hang(lock);
    values_[key] = value;
    changed_.notify_all();
  }
  std::optional<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) override {
    std::unique_lock lock(mutex_);
    fail_or_hang(lock);
    changed_.wait_for(lock, timeout, [&] { return values_.contains(key); });
    return values_.contains(key) ? std::optional(values_[key]) : std::nullopt;
  }
  void fail_with(std::function<void()> failure) {
    std::lock_guard lock(mutex_);
    failure_ = std::move(failure);
  }
  void hang(bool hangs) {
    std::lock_guard lock(mutex_);
    hangs_ = hangs;
    changed_.notify_all();
  }
  std::vector<std::string> keys() {
    std::lock_guard lock(mutex_);
    std::vector<std::string> keys;
    for (const auto& [key, value] : values_) keys.push_back(key);
    return keys;
  }

 private:
  void fail_or_hang(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return !hangs_; });
    if (failure_) failure_();
  }

  std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::function<void()> failure_;
  bool hangs_ = false;
};

std::string way(CallContext& call) { return call.peer().address; }
using WhichWay = Function<"which_way", &way>;

class ProgramStores : public testing::Test {
 protected:
  MemberOptions options(std::size_t rank, std::size_t world_size, const std::string& prefix = "jobs/1/") {
    MemberOptions options{
        {.name = "worker" + std::to_string(rank), .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1}};
    options.log = [](const LogRecord&) {};
    options.rendezvous = {
        .rank = rank, .world_size = world_size, .program_store = table_, .program_prefix = prefix};
    return options;
  }
  std::unique_ptr<Job> member(std::size_t rank, std::size_t world_size,
                              const std::string& prefix = "jobs/1/") {
    auto job = std::make_unique<Job>(options(rank, world_size, prefix));
    job->agent().serve<WhichWay>();
    return job;
  }
  // Members of all ranks, which have joined.
  std::vector<std::unique_ptr<Job>> joined(std::size_t world_size, const std::string& prefix) {
    std::vector<std::unique_ptr<Job>> jobs;
    std::vector<Future<void>> joins;
    for (std::size_t rank = world_size; rank-- > 0;) {
      jobs.insert(jobs.begin(), member(rank, world_size, prefix));
      joins.push_back(jobs.front()->join());
    }
    for (auto& join : joins) got(std::move(join));
    return jobs;
  }

  const std::shared_ptr<Table> table_ = std::make_shared<Table>();
};

TEST_F(ProgramStores, MembersMeetAtAnyPortOfRankZero) {
  const auto jobs = joined(3, "jobs/1/");
  EXPECT_EQ(table_->keys(), std::vector<std::string>{"jobs/1/host"});
  for (const auto& from : jobs) {
    EXPECT_EQ(from->members().size(), 3U);
    for (std::size_t to = 0; to < 3; ++to) EXPECT_NE(got(from->peer(to).call<WhichWay>()), "");
  }
  auto sums = jobs[0]->all_gather(1);
  auto others = jobs[1]->all_gather(2);
  EXPECT_EQ(got(jobs[2]->all_gather(3)),
            (std::map<std::string, int>{{"worker0", 1}, {"worker1", 2}, {"worker2", 3}}));
  got(std::move(sums));
  got(std::move(others));
  got(jobs[2]->store()->set("layer/key", "value"));
  EXPECT_EQ(got(jobs[0]->store()->get("layer/key")), "value");
  std::vector<std::thread> ends;
  for (const auto& job : jobs) ends.emplace_back([&job] { job->serve_until_shutdown(); });
  for (auto& end : ends) end.join();
}

TEST_F(ProgramStores, RanksOfOneHostUseSharedMemory) {
  std::string why;
  if (!shm_supported(&why)) GTEST_SKIP() << why;
  const auto jobs = joined(2, "jobs/1/");
  EXPECT_TRUE(got(jobs[0]->peer(1).call<WhichWay>()).starts_with("shm"));
  EXPECT_TRUE(got(jobs[1]->peer(0).call<WhichWay>()).starts_with("shm"));
}

TEST_F(ProgramStores, AnAddressOfAllInterfacesIsPublishedAsAnAddressOfTheHost) {
  try {
    (void)local_address_towards("192.0.2.1");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  MemberOptions wide = options(0, 2);
  wide.listen = {"tcp://0.0.0.0:0"};
  wide.insecure = true;
  Job host(wide);
  MemberOptions narrow = options(1, 2);
  narrow.insecure = true;
  Job worker(narrow);
  auto join = host.join();
  got(worker.join());
  got(std::move(join));
  EXPECT_FALSE(is_wildcard(Address::parse(worker.members().front().addresses.front()).host));
}

TEST_F(ProgramStores, SeveralJobsHaveTheirPrefixes) {
  {
    const auto first = joined(2, "jobs/1/");
    const auto second = joined(3, "jobs/2/");
    EXPECT_EQ(first[1]->members().size(), 2U);
    EXPECT_EQ(second[1]->members().size(), 3U);
    for (const auto& job : first) got(job->leave());
  }
  const auto third = joined(2, "jobs/3/");
  EXPECT_EQ(table_->keys(), (std::vector<std::string>{"jobs/1/host", "jobs/2/host", "jobs/3/host"}));
}

TEST_F(ProgramStores, MembersOfAnElasticWorldMeet) {
  MemberOptions first = options(0, 0), second = options(Rendezvous::no_rank, 0);
  second.name = "anna";
  for (MemberOptions* one : {&first, &second}) one->rendezvous.fixed_world = false;
  Job host(first), anna(second);
  auto two = host.wait_for(2);
  got(anna.join());
  got(std::move(two));
}

TEST_F(ProgramStores, AnAddressOfAnEarlierRankZeroIsReplaced) {
  {
    const auto earlier = member(0, 2);
    auto join = earlier->join();
    eventually("rank 0 has published its address", [&] { return !table_->keys().empty(); });
  }
  const auto worker = member(1, 2);
  auto join = worker->join();
  expect_error([&] { return got(worker->wait_for(1, 50ms)), 0; }, ErrorKind::deadline_exceeded,
               "'worker1' has not joined its job before the deadline: ");
  const auto host = member(0, 2);
  got(host->join());
  got(std::move(join));
}

TEST_F(ProgramStores, AnErrorOfTheStoreFailsTheJoinAndTheNextJoinSucceeds) {
  const auto host = member(0, 2), worker = member(1, 2);
  const auto fails = [&](Job& job, ErrorKind kind, const std::string& text) {
    expect_error([&] { return got(job.join()), 0; }, kind, whole("the program's store failed: " + text));
  };
  table_->fail_with([] { throw std::runtime_error("no connection to the TCPStore"); });
  fails(*host, ErrorKind::unavailable, "no connection to the TCPStore");
  fails(*worker, ErrorKind::unavailable, "no connection to the TCPStore");
  table_->fail_with([] { throw Error(ErrorKind::permission_denied, "a password is needed"); });
  fails(*worker, ErrorKind::permission_denied, "a password is needed");
  table_->fail_with([] { throw 17; });
  fails(*host, ErrorKind::unavailable, "an exception of an unknown type");
  expect_error([&] { return worker->store(), 0; }, ErrorKind::failed_precondition, "has not joined its job");
  table_->fail_with(nullptr);
  auto join = host->join();
  got(worker->join());
  got(std::move(join));
}

TEST_F(ProgramStores, AMalformedValueFailsTheJoin) {
  table_->set("jobs/1/host", "a value of another program");
  expect_error([&] { return got(member(1, 2)->join()), 0; }, ErrorKind::protocol_error);
}

TEST_F(ProgramStores, AStoreThatNeverAnswersEndsWithTheTimeout) {
  table_->hang(true);
  auto host = member(0, 2), worker = member(1, 2);
  const auto times_out = [](Job& job, const std::string& text) {
    eventually(text, [&] {
      const auto error = test::error_of([&] { return got(job.join(10ms)), 0; });
      return error->kind() == ErrorKind::deadline_exceeded && error->what() == text;
    });
  };
  times_out(*host,
            "'worker0' has not joined its job before the deadline: the program's store has not stored "
            "'jobs/1/host' yet");
  times_out(
      *worker,
      "'worker1' has not joined its job before the deadline: the program's store has not answered a get "
      "of 'jobs/1/host'");
  // Neither the loops nor the one handler thread are blocked.
  Agent other(AgentOptions{.name = "other"});
  EXPECT_NE(got(other.connect(worker->agent().addresses().front()).call<WhichWay>()), "");
  got(worker->leave());
  worker.reset();  // while the call hangs
  worker = member(1, 2);
  auto join = worker->join();
  table_->hang(false);
  got(host->join());
  got(std::move(join));
  host.reset();
  table_->hang(true);
  const auto last = member(1, 2, "jobs/2/");
  auto pending = last->join();
  last->agent().shut_down();
  expect_error([&] { return got(std::move(pending)), 0; }, ErrorKind::shut_down);
  table_->hang(false);
}

TEST_F(ProgramStores, ATimeoutStatesThatRankZeroIsMissing) {
  const auto worker = member(1, 3);
  auto join = worker->join();
  eventually("the worker has asked the store", [&] {
    const auto error = test::error_of([&] { return got(worker->join(1ms)), 0; });
    return std::string(error->what())
        .ends_with("rank 0 has not joined: the program's store has no 'jobs/1/host'");
  });
  const auto host = member(0, 3);
  got(host->wait_for(2));
  expect_error([&] { return got(worker->join(1ms)), 0; }, ErrorKind::deadline_exceeded,
               "before the deadline: ");
  expect_error([&] { return got(host->join(1ms)), 0; }, ErrorKind::deadline_exceeded,
               whole("1 of 3 ranks have not joined before the deadline: 2"));
  const auto last = member(2, 3);
  got(last->join(too_long));
  got(std::move(join));
}

TEST_F(ProgramStores, RefuseInvalidOptions) {
  MemberOptions two_stores = options(1, 2);
  two_stores.rendezvous.store = "tcp://127.0.0.1:1";
  expect_error([&] { return Job(two_stores).rank(); }, ErrorKind::invalid_argument, "expected one of them");
  MemberOptions deaf = options(0, 2);
  deaf.listen.clear();
  expect_error([&] { return Job(deaf).rank(); }, ErrorKind::invalid_argument,
               whole("rank 0 keeps the store: its options.listen is empty, expected an address"));
}

TEST_F(ProgramStores, TakeOtherOptionsFromTheEnvironment) {
  const auto from = [&](std::size_t rank, const std::map<std::string, std::string>& variables) {
    return options_from(
        table_, "jobs/1/", rank, 4,
        [&](const std::string& name) {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        [](const std::string&) { return "10.0.0.7"; });
  };
  const MemberOptions alone = from(0, {{"RANK", "3"}});
  EXPECT_EQ(alone.name, "worker0");
  EXPECT_EQ(alone.listen, std::vector<std::string>{"tcp://127.0.0.1:0"});
  EXPECT_EQ(alone.rendezvous.rank, 0U);
  EXPECT_EQ(alone.rendezvous.world_size, 4U);
  EXPECT_EQ(alone.rendezvous.store, "");
  EXPECT_EQ(alone.rendezvous.program_store, table_);
  EXPECT_EQ(alone.rendezvous.program_prefix, "jobs/1/");
  const MemberOptions host = from(0, {{"MASTER_ADDR", "node0"}, {"WEFT_INSECURE", "1"}});
  EXPECT_TRUE(host.insecure);
  EXPECT_EQ(host.listen, std::vector<std::string>{"tcp://10.0.0.7:0"});
  EXPECT_EQ(from(1, {{"WEFT_HOST", "10.0.0.9"}}).listen, std::vector<std::string>{"tcp://10.0.0.9:0"});
  EXPECT_EQ(from(0, {{"WEFT_LISTEN", "tcp://0.0.0.0:7000"}}).listen,
            std::vector<std::string>{"tcp://0.0.0.0:7000"});
  EXPECT_EQ(kind_of([&] { return from(4, {}); }), ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::rpc::program_store_test

// The etcd store, tested against Debian's etcd-server: the store suite, and the behaviour of clients while
// etcd is stopped, killed, restarted or emptied.
#include <weft/rpc/job/store/etcd_store.h>

#include "tests/support/cluster.h"
#include "tests/support/etcd_server.h"
#include "tests/support/store_suite.h"

namespace weft::test {

// Starting etcd takes half a second, so the tests share one server. Each test uses a separate prefix.
EtcdServer& shared_server() {
  static EtcdServer server;
  if (!server.running()) server.start();
  return server;
}

struct EtcdBackend : StoreBackend {
  EtcdBackend() {
    if (!EtcdServer::installed()) {
      missing = "etcd is not installed (Debian: etcd-server)";
      return;
    }
    options = rpc::EtcdStore::options_of(shared_server().url(std::to_string(++tests)));
    options.timeout = std::chrono::seconds{30};
    mine = client();
    theirs = client();
  }
  ~EtcdBackend() override {
    mine = theirs = nullptr;
    loop->stop();
  }
  std::shared_ptr<rpc::Store> client() override { return std::make_shared<rpc::EtcdStore>(loop, options); }
  void end() override { shared_server().kill(); }
  std::shared_ptr<rpc::Store> impatient() override {
    options.timeout = std::chrono::seconds{2};
    return client();
  }

  static inline int tests = 0;
  rpc::EtcdStoreOptions options;
  std::shared_ptr<rpc::AsioLoop> loop = std::make_shared<rpc::AsioLoop>();
};

INSTANTIATE_TYPED_TEST_SUITE_P(Etcd, StoreSuite, EtcdBackend);

}  // namespace weft::test

namespace weft::rpc::etcd_store_process_test {
namespace {

using namespace std::chrono_literals;
using test::EtcdServer;

class EtcdFaults : public testing::Test {
 protected:
  void SetUp() override {
    if (!EtcdServer::installed()) GTEST_SKIP() << "etcd is not installed (Debian: etcd-server)";
    etcd_ = std::make_unique<EtcdServer>();
  }
  void TearDown() override {
    stores_.clear();
    loop_->stop();
  }
  EtcdStore& store(std::chrono::nanoseconds timeout = 30s) {
    auto options = EtcdStore::options_of(etcd_->url("job"));
    options.timeout = timeout;
    stores_.push_back(std::make_shared<EtcdStore>(loop_, options));
    return *stores_.back();
  }
  template <class T>
  static Error failure(Future<T> future) {
    const auto error = test::error_of([&] { return test::got(std::move(future)), 0; });
    EXPECT_TRUE(error) << "no error";
    return error.value_or(Error(ErrorKind::internal, "none"));
  }
  // Returns a copy of all keys, kept up to date until it contains the key `until`.
  static std::map<std::string, std::string> follow(Store& store, const std::string& until,
                                                   std::uint64_t version = 0,
                                                   std::map<std::string, std::string> copy = {}) {
    while (!copy.contains(until)) {
      const StoreChanges changes = test::got(store.watch("", version));
      changes.apply_to(copy);
      version = changes.version;
    }
    return copy;
  }

  std::unique_ptr<EtcdServer> etcd_;
  std::shared_ptr<AsioLoop> loop_ = std::make_shared<AsioLoop>();
  std::vector<std::shared_ptr<EtcdStore>> stores_;
};

TEST_F(EtcdFaults, CallsFailWhileEtcdIsStoppedAndSucceedAfterwards) {
  EtcdStore& patient = store();
  patient.set("before", "1").get();
  auto late = patient.get("late");
  patient.try_get("before").get();
  etcd_->stop();
  EtcdStore& impatient = store(1s);
  const Error error = failure(impatient.set("key", "1"));
  EXPECT_EQ(error.kind(), ErrorKind::unavailable);
  EXPECT_EQ(error.execution(), Execution::maybe_executed);
  EXPECT_EQ(std::string(error.what()),
            "etcd at " + etcd_->server() + ": not reached: " + etcd_->server() + " (no answer)");
  EXPECT_EQ(failure(impatient.get("before")).kind(), ErrorKind::unavailable);
  EXPECT_EQ(failure(impatient.watch("", 0)).kind(), ErrorKind::unavailable);
  EXPECT_EQ(failure(patient.get("never", {.timeout = 50ms})).kind(), ErrorKind::deadline_exceeded);
  EXPECT_EQ(failure(patient.watch("", 1'000, {.timeout = 50ms})).kind(), ErrorKind::deadline_exceeded);
  auto pending = patient.set("after", "2");
  etcd_->go_on();
  test::got(std::move(pending));
  EXPECT_EQ(test::got(patient.get("after")), "2");
  test::got(patient.set("late", "3"));
  EXPECT_EQ(test::got(std::move(late)), "3");
}

TEST_F(EtcdFaults, WaitsContinueThroughARestart) {
  EtcdStore& mine = store();
  EtcdStore& theirs = store();
  mine.set("a/1", "1").get();
  mine.set("a/2", "1").get();
  std::map<std::string, std::string> copy;
  const StoreChanges first = test::got(theirs.watch("", 0));
  first.apply_to(copy);
  auto change = theirs.watch("", first.version);
  auto get = theirs.get("end");
  auto wait = theirs.wait({"a/1", "end"});
  theirs.try_get("a/1").get();
  etcd_->kill();
  auto pending = mine.set("a/1", "2");
  etcd_->start();
  // A request that was not sent is retried. This one may also have been sent over the connection that was
  // closing.
  if (const auto error = test::error_of([&] { return test::got(std::move(pending)), 0; })) {
    EXPECT_EQ(error->execution(), Execution::maybe_executed) << error->what();
    test::got(mine.set("a/1", "2"));
  }
  test::got(mine.remove("a/2"));
  test::got(mine.set("end", "!"));
  const StoreChanges next = test::got(std::move(change));
  EXPECT_FALSE(next.whole);
  EXPECT_GT(next.version, first.version);
  next.apply_to(copy);
  EXPECT_EQ(follow(theirs, "end", next.version, copy),
            (std::map<std::string, std::string>{{"a/1", "2"}, {"end", "!"}}));
  EXPECT_EQ(test::got(std::move(get)), "!");
  test::got(std::move(wait));
}

TEST_F(EtcdFaults, ALeaseOutlivesARestart) {
  EtcdStore& mine = store();
  const StoreLease lease = mine.grant(3s).get();
  const LeaseKeeper keeper(stores_.front(), loop_, lease,
                           [](const Error& error) { ADD_FAILURE() << error.what(); });
  mine.set("leased", "", lease.id).get();
  etcd_->kill();
  etcd_->start();
  EXPECT_EQ(test::got(store().get("leased")), "");
  test::got(mine.renew(lease.id));
  EXPECT_EQ(test::got(store().try_get("leased")), "");
}

TEST_F(EtcdFaults, AnEmptyEtcdAtTheSameAddressIsReadAsEmpty) {
  EtcdStore& mine = store();
  EtcdStore& theirs = store();
  for (int i = 0; i < 20; ++i) mine.set("key", std::to_string(i)).get();
  const StoreChanges first = test::got(theirs.watch("", 0));
  auto change = theirs.watch("", first.version);
  auto get = theirs.get("new");
  theirs.try_get("key").get();
  etcd_->kill();
  etcd_->forget();
  etcd_->start();
  const StoreChanges next = test::got(std::move(change));
  EXPECT_TRUE(next.whole);
  EXPECT_LT(next.version, first.version);
  EXPECT_TRUE(next.entries.empty());
  test::got(mine.set("new", "1"));
  EXPECT_EQ(test::got(std::move(get)), "1");
  EXPECT_EQ(follow(theirs, "new", first.version), (std::map<std::string, std::string>{{"new", "1"}}));
}

TEST_F(EtcdFaults, AServerThatIsDownIsSkipped) {
  EtcdServer other;
  auto options = EtcdStore::options_of("etcd://" + other.server() + "," + etcd_->server() + "/job");
  options.timeout = 30s;
  other.kill();
  stores_.push_back(std::make_shared<EtcdStore>(loop_, options));
  EtcdStore& both = *stores_.back();
  auto get = both.get("key");
  test::got(store().set("key", "1"));
  EXPECT_EQ(test::got(std::move(get)), "1");
}

TEST_F(EtcdFaults, DiscardRemovesThePrefixAlone) {
  EtcdStore& mine = store();
  auto options = EtcdStore::options_of(etcd_->url("job2"));
  stores_.push_back(std::make_shared<EtcdStore>(loop_, options));
  EtcdStore& other = *stores_.back();
  mine.set("a", "1").get();
  other.set("a", "2").get();
  mine.discard().get();
  EXPECT_TRUE(mine.list("").get().entries.empty());
  EXPECT_EQ(other.get("a").get(), "2");
}

}  // namespace
}  // namespace weft::rpc::etcd_store_process_test

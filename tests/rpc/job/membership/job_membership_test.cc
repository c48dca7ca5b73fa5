// Members whose store fails: it refuses an operation, loses a reply, or does not reply.
#include <weft/rpc/job/membership/job_membership.h>

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/job/store/memory_store.h>

#include <any>

#include "tests/support/cluster.h"
#include "tests/support/job.h"

namespace weft::rpc::job_membership_test {
namespace {

using namespace std::chrono_literals;
using test::got;

// none: the operation succeeds. refuse: it has no effect and fails. lose_reply: it succeeds, but is reported
// as failed. hang: it never completes.
enum class Fault { none, refuse, lose_reply, hang };

// One client of the store of a job, with its faults.
class FaultyStore final : public Store {
 public:
  // value: of a set or compare_set.
  using Judge =
      std::function<Fault(std::string_view operation, const std::string& key, const std::string& value)>;

  explicit FaultyStore(std::shared_ptr<Store> store) : store_(std::move(store)) {}
  // kind: of the errors.
  void fail(Judge judge, ErrorKind kind = ErrorKind::unavailable) {
    std::lock_guard lock(mutex_);
    judge_ = std::move(judge);
    kind_ = kind;
  }

  Future<void> set(std::string key, std::string value, LeaseId lease) override {
    return may_fail<void>("set", key, value, [&] { return store_->set(key, value, lease); });
  }
  Future<std::string> get(std::string key, CallOptions options) override {
    return may_fail<std::string>("get", key, "", [&] { return store_->get(key, options); });
  }
  Future<std::optional<std::string>> try_get(std::string key) override {
    return may_fail<std::optional<std::string>>("try_get", key, "", [&] { return store_->try_get(key); });
  }
  Future<std::int64_t> add(std::string key, std::int64_t delta) override { return store_->add(key, delta); }
  Future<StoreExchange> compare_set(std::string key, std::optional<std::string> expected, std::string desired,
                                    LeaseId lease) override {
    return may_fail<StoreExchange>("compare_set", key, desired,
                                   [&] { return store_->compare_set(key, expected, desired, lease); });
  }
  Future<void> wait(std::vector<std::string> keys, CallOptions options) override {
    return store_->wait(std::move(keys), options);
  }
  Future<bool> remove(std::string key) override {
    return may_fail<bool>("remove", key, "", [&] { return store_->remove(key); });
  }
  Future<StoreView> list(std::string prefix) override {
    return may_fail<StoreView>("list", prefix, "", [&] { return store_->list(prefix); });
  }
  Future<StoreChanges> watch(std::string prefix, std::uint64_t after, CallOptions options) override {
    return may_fail<StoreChanges>("watch", prefix, "", [&] { return store_->watch(prefix, after, options); });
  }
  Future<StoreLease> grant(std::chrono::nanoseconds ttl) override { return store_->grant(ttl); }
  Future<void> renew(LeaseId lease) override {
    return may_fail<void>("renew", "", "", [&] { return store_->renew(lease); });
  }
  Future<void> revoke(LeaseId lease) override {
    return may_fail<void>("revoke", "", "", [&] { return store_->revoke(lease); });
  }

 private:
  template <class T, class F>
  Future<T> may_fail(std::string_view operation, const std::string& key, const std::string& value, F run) {
    Judge judge;
    ErrorKind kind = ErrorKind::unavailable;
    {
      std::lock_guard lock(mutex_);
      judge = judge_;
      kind = kind_;
    }
    const Fault fault = judge ? judge(operation, key, value) : Fault::none;
    if (fault == Fault::none) return run();
    auto promise = std::make_shared<Promise<T>>();
    auto future = promise->future();
    if (fault == Fault::lose_reply) run().then([](Result<T>&&) {});
    if (fault != Fault::hang) {
      promise->fail(Error(kind, "etcdserver: leader changed", Execution::maybe_executed));
    } else {
      std::lock_guard lock(mutex_);
      hanging_.emplace_back(promise);
    }
    return future;
  }

  const std::shared_ptr<Store> store_;
  std::mutex mutex_;  // guards the members below
  Judge judge_;
  ErrorKind kind_ = ErrorKind::unavailable;
  std::vector<std::any> hanging_;
};

// Fails the first operation of this name that writes a value which begins with `text`. "write": set or
// compare_set.
FaultyStore::Judge first(Fault fault, std::string operation, std::string text) {
  return [=, done = std::make_shared<std::atomic<bool>>(false)](std::string_view name, const std::string&,
                                                                const std::string& value) {
    const bool meant =
        name == operation || (operation == "write" && (name == "set" || name == "compare_set"));
    return meant && value.starts_with(text) && !done->exchange(true) ? fault : Fault::none;
  };
}

class JobMembershipTest : public testing::Test {
 protected:
  struct One {
    std::shared_ptr<FaultyStore> store;
    std::shared_ptr<AgentCore> core;
    std::shared_ptr<detail::JobMembership> membership;
    detail::JobMembership* operator->() const { return membership.get(); }
  };

  ~JobMembershipTest() override {
    for (const One& one : members_) one.membership->shut_down(), one.core->shut_down();
    store->close();
    loop->stop();
  }
  One& add(const std::string& name, const Rendezvous& rendezvous) {
    AgentOptions options{.name = name, .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1};
    options.log = [](const LogRecord&) {};
    One one{std::make_shared<FaultyStore>(store), std::make_shared<AgentCore>(options, nullptr), nullptr};
    detail::StoreAccess access{.store = one.store, .towards = "127.0.0.1", .loop = one.core->pick_loop()};
    one.membership = detail::JobMembership::install(one.core, rendezvous, std::move(access));
    one.core->listen();
    members_.push_back(std::move(one));
    return members_.back();
  }
  One& elastic(const std::string& name) { return add(name, {.fixed_world = false, .lease = 1h}); }
  static void join(One& one, One& other) {
    auto first = one->wait_for(2);
    got(other->wait_for(2));
    got(std::move(first));
  }
  std::string record(const std::string& name) {
    const auto text = got(store->try_get("members/" + name));
    return text ? text->substr(0, text->find(' ')) : "none";
  }

  std::shared_ptr<AsioLoop> loop = std::make_shared<AsioLoop>();
  std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>(loop);
  std::deque<One> members_;
};

TEST_F(JobMembershipTest, AMemberWhoseStoreFailsWhileItPublishesItsStateStillEnds) {
  for (const Fault fault : {Fault::refuse, Fault::lose_reply}) {
    for (const bool released : {false, true}) {
      const std::string number = std::to_string(members_.size());
      One& anna = elastic("anna" + number);
      One& bert = elastic("bert" + number);
      join(anna, bert);
      std::atomic<int> failed = 0;
      for (One* one : {&anna, &bert})
        one->store->fail([&, first = std::make_shared<std::atomic<bool>>(true)](
                             std::string_view, const std::string&, const std::string& value) {
          const bool has_released = value.find("has released") != std::string::npos;
          if (!value.starts_with("serving") || has_released != released || !first->exchange(false))
            return Fault::none;
          ++failed;
          return fault;
        });
      auto end = anna->others_left(test::too_long);
      got(bert->others_left(test::too_long));
      got(std::move(end));
      EXPECT_GE(failed, 1);
      for (One* one : {&anna, &bert}) one->store->fail(nullptr);
      EXPECT_EQ(record("anna" + number), "left");
    }
  }
}

TEST_F(JobMembershipTest, LeavingWaitsForTheEndOfAnOutage) {
  for (const Fault fault : {Fault::refuse, Fault::lose_reply}) {
    const std::string name = fault == Fault::refuse ? "anna" : "bert";
    One& one = elastic(name);
    got(one->wait_for(1));
    one.store->fail(first(fault, "write", "left"));
    auto leaves = one->leave();
    got(one->leave());  // waits for the same record
    EXPECT_EQ(record(name), "left");
    got(std::move(leaves));
  }
}

TEST_F(JobMembershipTest, ALeaveThatFailedIsRepeated) {
  One& anna = elastic("anna");
  One& bert = elastic("bert");
  join(anna, bert);
  const auto watch = bert->watch();
  EXPECT_EQ(got(watch->next()).size(), 2U);
  anna.store->fail(
      [](std::string_view, const std::string&, const std::string& value) {
        return value.starts_with("left") ? Fault::refuse : Fault::none;
      },
      ErrorKind::resource_exhausted);
  for (int tries = 0; tries < 2; ++tries) {
    EXPECT_EQ(test::kind_of([&] { got(anna->leave()); }), ErrorKind::resource_exhausted);
    EXPECT_EQ(record("anna"), "joined");
  }
  anna.store->fail(nullptr);
  got(anna->leave());
  const auto events = got(watch->next());
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events[0].change, MemberChange::left);
  got(anna->leave());
}

TEST_F(JobMembershipTest, AMemberThatLeavesDoesNotReplaceTheNextIncarnation) {
  One& anna = elastic("anna");
  got(anna->wait_for(1));
  anna.store->fail([&](std::string_view, const std::string& key, const std::string& value) {
    if (value.starts_with("left")) store->set(key, "joined rank none incarnation 7\n").get();
    return Fault::none;
  });
  EXPECT_EQ(test::kind_of([&] { got(anna->leave()); }), ErrorKind::lease_lost);
  EXPECT_EQ(record("anna"), "joined");
}

// If rank 0 keeps the store, it ends as soon as the last member has left.
TEST_F(JobMembershipTest, AMemberThatHasLeftDoesNotWaitForTheStore) {
  One& one = elastic("anna");
  got(one->wait_for(1));
  std::atomic<bool> left = false;
  one.store->fail([&](std::string_view, const std::string&, const std::string& value) {
    if (left) return Fault::hang;
    left = value.starts_with("left");
    return Fault::none;
  });
  got(one->leave());
  EXPECT_EQ(record("anna"), "left");
}

TEST_F(JobMembershipTest, JoiningWaitsForTheEndOfAnOutageInEachStep) {
  for (const Fault fault : {Fault::refuse, Fault::lose_reply}) {
    const std::string name = fault == Fault::refuse ? "anna" : "bert";
    One& one = elastic(name);
    one.store->fail(first(fault, "write", "joined"));
    got(one->wait_for(1));
    EXPECT_EQ(record(name), "joined");
  }
}

TEST_F(JobMembershipTest, TheHostJoinsAfterAnOutageInEachStep) {
  One& host = add("host", {.rank = 0, .world_size = 1, .lease = 1h});
  std::set<std::string> failed;
  host.store->fail([&](std::string_view operation, const std::string& key, const std::string& value) {
    const bool writes = operation == "set" || operation == "compare_set";
    return writes && failed.insert(key + value.substr(0, 6)).second ? Fault::refuse : Fault::none;
  });
  got(host->wait_for(1));
  EXPECT_EQ(failed.size(), 5U);  // the world, the rank, the name, the host, the record
  host.store->fail(nullptr);
}

TEST_F(JobMembershipTest, ARankIsGivenBackAfterAnOutage) {
  got(store->set("members/anna", "left rank 0 incarnation 7\n"));
  One& anna = add("anna", {.rank = 0, .world_size = 1, .lease = 1h});
  anna.store->fail(first(Fault::refuse, "remove", ""));
  EXPECT_EQ(test::kind_of([&] { got(anna->wait_for(1)); }), ErrorKind::already_exists);
  EXPECT_EQ(got(store->try_get("ranks/0")), std::nullopt);
}

// Without a lease, the wait for the end of the earlier incarnation lasts for a second.
TEST_F(JobMembershipTest, AnAgentWhoseNameIsTakenPausesBetweenLooksInAnOutage) {
  MemberRecord earlier;
  earlier.name = "anna";
  earlier.incarnation = 7;
  earlier.state = MemberState::joined;
  got(store->set(detail::member_key("anna"), to_text(earlier)));
  One& anna = add("anna", {.fixed_world = false, .lease = 0ms});
  std::atomic<int> looks = 0;
  anna.store->fail([&](std::string_view operation, const std::string&, const std::string&) {
    if (operation != "watch") return Fault::none;
    ++looks;
    return Fault::refuse;
  });
  EXPECT_EQ(test::kind_of([&] { got(anna->wait_for(1)); }), ErrorKind::already_exists);
  EXPECT_GE(looks, 1);
  EXPECT_LE(looks, 100);
}

TEST_F(JobMembershipTest, AMemberLooksAgainAfterAnyErrorOfItsStore) {
  One& anna = elastic("anna");
  got(anna->wait_for(1));
  auto two = anna->wait_for(2);
  anna.store->fail(first(Fault::refuse, "watch", ""), ErrorKind::resource_exhausted);
  got(elastic("bert")->wait_for(1));
  EXPECT_EQ(test::kind_of([&] { got(std::move(two)); }), ErrorKind::resource_exhausted);
  test::eventually("anna knows bert", [&] { return anna->members().size() == 2; });
}

}  // namespace
}  // namespace weft::rpc::job_membership_test

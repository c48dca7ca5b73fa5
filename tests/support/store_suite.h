// The contract of rpc::Store, as a suite of tests to run against every backend, through two clients of one
// store. For a backend with a class derived from StoreBackend, one line runs the suite:
//
//   INSTANTIATE_TYPED_TEST_SUITE_P(Memory, StoreSuite, MemoryBackend);
#pragma once

#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/job/store/lease_keeper.h>
#include <weft/rpc/testing/wait.h>

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "tests/support/errors.h"

namespace weft::test {

// A separate store for each test.
struct StoreBackend {
  virtual ~StoreBackend() = default;
  std::shared_ptr<rpc::Store> mine, theirs;
  // Returns another client, which ends with its last reference.
  virtual std::shared_ptr<rpc::Store> client() = 0;
  virtual void end() = 0;  // ends the store, not its clients
  // a client that soon detects the end of the store
  virtual std::shared_ptr<rpc::Store> impatient() { return theirs; }
  std::string missing;  // why this machine does not support it
};

template <class Backend>
class StoreSuite : public testing::Test {
 protected:
  // The timeout of a test that would otherwise hang.
  static constexpr rpc::CallOptions bounded{.timeout = std::chrono::seconds{40}};
  // The lease that a test lets expire. It is longer than a busy machine delays a test or a keeper. Etcd
  // grants no shorter one.
  static constexpr std::chrono::seconds ttl{2};

  void SetUp() override {
    if (!backend_.missing.empty()) GTEST_SKIP() << backend_.missing;
  }
  rpc::Store& mine() { return *backend_.mine; }
  rpc::Store& theirs() { return *backend_.theirs; }

  template <class T>
  static rpc::ErrorKind kind_of(rpc::Future<T> future) {
    const auto kind = test::kind_of([&] { return got(std::move(future)), 0; });
    EXPECT_TRUE(kind) << "no error";
    return kind.value_or(rpc::ErrorKind::internal);
  }
  // Watches until the key is removed.
  void await_removal(rpc::Store& store, const std::string& key) {
    std::map<std::string, std::string> copy;
    std::uint64_t version = 0;
    do {
      const rpc::StoreChanges changes = store.watch(key, version, bounded).get();
      changes.apply_to(copy);
      version = changes.version;
    } while (copy.contains(key));
  }

  Backend backend_;
};

TYPED_TEST_SUITE_P(StoreSuite);

TYPED_TEST_P(StoreSuite, ReturnsStoredValues) {
  this->mine().set("key", "value").get();
  EXPECT_EQ(this->theirs().get("key").get(), "value");
  this->mine().set("key", "other").get();
  EXPECT_EQ(this->theirs().try_get("key").get(), "other");
  EXPECT_EQ(this->theirs().try_get("no such key").get(), std::nullopt);
}

TYPED_TEST_P(StoreSuite, ValuesHoldAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 1 << 20; ++i) bytes += static_cast<char>((i + i / 251) % 256);
  for (const std::string& value :
       {bytes, std::string(), std::string("a\0b", 3), std::string("\xff\xfe"), std::string("\"\\\n")}) {
    this->mine().set("key", value).get();
    EXPECT_TRUE(this->theirs().get("key").get() == value) << value.size();  // 1 MiB exceeds a message
    EXPECT_TRUE(this->theirs().list("k").get().entries.at("key") == value) << value.size();
    EXPECT_TRUE(this->theirs().watch("k", 0).get().entries.at("key") == value) << value.size();
    EXPECT_TRUE(this->theirs().compare_set("key", value, value).get().stored) << value.size();
  }
}

TYPED_TEST_P(StoreSuite, KeysMayHoldAnyBytes) {
  const std::set<std::string> keys{"",
                                   " ",
                                   "/",
                                   "//",
                                   "a b",
                                   "a/../b",
                                   "%2f",
                                   "\"quoted\"",
                                   "a\n",
                                   "\xc3\xa4",
                                   "\\",
                                   "{\"k\":",
                                   "null",
                                   "~",
                                   std::string("a\0b", 3),
                                   std::string(1000, 'k')};
  for (const auto& key : keys) this->mine().set(key, "of " + key).get();
  for (const auto& key : keys) EXPECT_EQ(this->theirs().get(key).get(), "of " + key) << key;
  std::set<std::string> listed;
  for (const auto& [key, value] : this->theirs().list("").get().entries) listed.insert(key);
  EXPECT_EQ(listed, keys);
  for (const auto& key : keys) EXPECT_TRUE(this->theirs().remove(key).get()) << key;
  EXPECT_TRUE(this->mine().list("").get().entries.empty());
}

TYPED_TEST_P(StoreSuite, GetWaitsForTheKey) {
  auto first = this->theirs().get("late", this->bounded);
  auto second = this->theirs().get("late", this->bounded);
  this->mine().set("later", "x").get();
  EXPECT_FALSE(first.ready());
  this->mine().set("late", "here").get();
  EXPECT_EQ(first.get(), "here");
  EXPECT_EQ(second.get(), "here");
}

TYPED_TEST_P(StoreSuite, ManyMayWaitForOneKey) {
  std::vector<rpc::Future<std::string>> waits;
  for (int i = 0; i < 100; ++i)
    for (rpc::Store* store : {&this->mine(), &this->theirs()})
      waits.push_back(store->get("key", this->bounded));
  this->mine().set("key", "value").get();
  for (auto& wait : waits) EXPECT_EQ(wait.get(), "value");
}

TYPED_TEST_P(StoreSuite, AddCountsAcrossClients) {
  EXPECT_EQ(this->mine().add("count", 5).get(), 5);
  EXPECT_EQ(this->theirs().add("count", -7).get(), -2);
  EXPECT_EQ(this->mine().try_get("count").get(), "-2");
  std::vector<std::set<std::int64_t>> sums(4);
  std::vector<std::thread> threads;
  for (std::size_t n = 0; n < sums.size(); ++n)
    threads.emplace_back([&, n] {
      rpc::Store& store = n % 2 == 0 ? this->mine() : this->theirs();
      std::vector<rpc::Future<std::int64_t>> pending;
      for (int i = 0; i < 25; ++i) pending.push_back(store.add("sum", 1));
      for (auto& sum : pending) sums[n].insert(sum.get());
    });
  for (auto& thread : threads) thread.join();
  std::set<std::int64_t> all;
  for (const auto& some : sums) all.insert(some.begin(), some.end());
  EXPECT_EQ(all.size(), 100U);  // each sum occurs once
  EXPECT_EQ(this->mine().add("sum", 0).get(), 100);
}

TYPED_TEST_P(StoreSuite, AddRefusesValuesThatAreNotNumbers) {
  this->mine().set("text", "12 monkeys").get();
  EXPECT_EQ(this->kind_of(this->theirs().add("text", 1)), rpc::ErrorKind::invalid_argument);
  this->mine().set("large", "9223372036854775807").get();
  EXPECT_EQ(this->kind_of(this->theirs().add("large", 1)), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(this->theirs().try_get("large").get(), "9223372036854775807");
}

TYPED_TEST_P(StoreSuite, CompareSetStoresOnlyIfTheKeyHasTheExpectedValue) {
  auto exchange = this->mine().compare_set("key", std::nullopt, "a").get();
  EXPECT_TRUE(exchange.stored);
  EXPECT_EQ(exchange.actual, "a");
  exchange = this->theirs().compare_set("key", std::nullopt, "b").get();
  EXPECT_FALSE(exchange.stored);
  EXPECT_EQ(exchange.actual, "a");
  exchange = this->theirs().compare_set("key", "a", "c").get();
  EXPECT_TRUE(exchange.stored);
  EXPECT_EQ(exchange.actual, "c");
  for (const char* expected : {"a", ""}) {
    exchange = this->theirs().compare_set("absent", expected, "c").get();
    EXPECT_FALSE(exchange.stored);
    EXPECT_EQ(exchange.actual, std::nullopt);
  }
  EXPECT_EQ(this->mine().get("key").get(), "c");
}

TYPED_TEST_P(StoreSuite, CompareSetHasOneWinner) {
  std::vector<rpc::Future<rpc::StoreExchange>> exchanges;
  for (int i = 0; i < 10; ++i) {
    exchanges.push_back(this->mine().compare_set("prize", std::nullopt, "mine" + std::to_string(i)));
    exchanges.push_back(this->theirs().compare_set("prize", std::nullopt, "theirs" + std::to_string(i)));
  }
  int winners = 0;
  const std::string prize = this->mine().get("prize").get();
  for (auto& future : exchanges) {
    const auto exchange = future.get();
    winners += exchange.stored ? 1 : 0;
    EXPECT_EQ(exchange.actual, prize);
  }
  EXPECT_EQ(winners, 1);
}

TYPED_TEST_P(StoreSuite, WaitEndsWhenAllKeysExist) {
  this->theirs().wait({}, this->bounded).get();
  auto wait = this->theirs().wait({"a", "b", "c", "a"}, this->bounded);
  this->mine().set("c", "").get();
  this->mine().set("a", "").get();
  this->mine().remove("c").get();
  this->mine().set("b", "").get();
  this->theirs().try_get("b").get();
  EXPECT_FALSE(wait.ready());
  this->mine().set("c", "").get();
  wait.get();
}

TYPED_TEST_P(StoreSuite, RemoveReportsWhetherTheKeyExisted) {
  this->mine().set("key", "old").get();
  EXPECT_TRUE(this->theirs().remove("key").get());
  EXPECT_FALSE(this->mine().remove("key").get());
  EXPECT_EQ(this->mine().try_get("key").get(), std::nullopt);
  auto value = this->mine().get("key", this->bounded);
  this->theirs().set("key", "new").get();
  EXPECT_EQ(value.get(), "new");
}

TYPED_TEST_P(StoreSuite, ListReturnsTheKeysWithAPrefix) {
  const auto empty = this->theirs().list("").get();
  EXPECT_TRUE(empty.entries.empty());
  EXPECT_NE(empty.version, 0U);
  for (const char* key : {"a", "a/1", "a/2", "a0", "b/1"}) this->mine().set(key, key).get();
  const auto view = this->theirs().list("a/").get();
  EXPECT_EQ(view.entries, (std::map<std::string, std::string>{{"a/1", "a/1"}, {"a/2", "a/2"}}));
  EXPECT_GE(view.version, empty.version + 5);
  EXPECT_EQ(this->mine().list("").get().entries.size(), 5U);
}

TYPED_TEST_P(StoreSuite, AWatchReportsChangesSinceAVersion) {
  using Entries = std::map<std::string, std::optional<std::string>>;
  rpc::Store& theirs = this->theirs();
  // at once, although there are no keys
  rpc::StoreChanges changes = theirs.watch("a/", 0, this->bounded).get();
  EXPECT_TRUE(changes.whole);
  EXPECT_EQ(changes.entries, Entries{});
  this->mine().set("a/1", "x").get();
  this->mine().set("a/2", "y").get();
  std::map<std::string, std::string> copy;
  for (; copy.size() != 2; changes.apply_to(copy))
    changes = theirs.watch("a/", changes.version, this->bounded).get();
  const std::uint64_t before = changes.version;

  auto change = theirs.watch("a/", before, this->bounded);
  this->mine().set("b/1", "elsewhere").get();
  EXPECT_FALSE(change.ready());
  this->mine().set("a/3", "z").get();
  changes = change.get();
  EXPECT_FALSE(changes.whole);
  EXPECT_EQ(changes.entries, (Entries{{"a/3", "z"}}));
  EXPECT_GT(changes.version, before);
  // Changes before the watch starts: an overwritten value, and a removed key.
  this->mine().remove("a/2").get();
  changes = theirs.watch("a/", changes.version, this->bounded).get();
  EXPECT_EQ(changes.entries, (Entries{{"a/2", std::nullopt}}));
  // Changes during a watch.
  change = theirs.watch("a/", changes.version, this->bounded);
  this->mine().remove("a/1").get();
  changes = change.get();
  EXPECT_EQ(changes.entries, (Entries{{"a/1", std::nullopt}}));
  // A watch returns the last change of each key after the given version. With a version that does not exist
  // yet, it returns all keys.
  this->mine().set("a/1", "again").get();
  EXPECT_EQ(theirs.list("a/").get().entries,
            (std::map<std::string, std::string>{{"a/1", "again"}, {"a/3", "z"}}));
  changes = theirs.watch("a/", theirs.list("").get().version + 1000, this->bounded).get();
  EXPECT_TRUE(changes.whole);
  EXPECT_EQ(changes.entries, (Entries{{"a/1", "again"}, {"a/3", "z"}}));
}

TYPED_TEST_P(StoreSuite, AWatcherSeesEachKeysValuesInOrder) {
  std::thread writer([&] {
    for (int i = 1; i <= 100; ++i) {
      this->mine().set("a/" + std::to_string(i % 3), std::to_string(i)).get();
      if (i % 10 == 0) this->mine().remove("a/1").get();
    }
    this->mine().set("a/end", "").get();
  });
  std::map<std::string, std::string> copy;
  std::map<std::string, int> last;
  std::uint64_t version = 0;
  while (!copy.contains("a/end")) {
    const auto changes = this->theirs().watch("a/", version, this->bounded).get();
    EXPECT_GT(changes.version, version);
    version = changes.version;
    changes.apply_to(copy);
    for (const auto& [key, value] : changes.entries) {
      if (!value || value->empty()) continue;
      EXPECT_GE(std::stoi(*value), last[key]) << key;
      last[key] = std::stoi(*value);
    }
  }
  writer.join();
  EXPECT_EQ(copy, this->mine().list("a/").get().entries);
}

TYPED_TEST_P(StoreSuite, AWaitIsCancelled) {
  auto get = this->mine().get("never", this->bounded);
  auto wait = this->mine().wait({"never"}, this->bounded);
  auto watch = this->mine().watch("never", this->mine().list("").get().version, this->bounded);
  get.cancel();
  get.cancel();
  wait.cancel();
  watch.cancel();
  EXPECT_EQ(this->kind_of(std::move(get)), rpc::ErrorKind::cancelled);
  EXPECT_EQ(this->kind_of(std::move(wait)), rpc::ErrorKind::cancelled);
  EXPECT_EQ(this->kind_of(std::move(watch)), rpc::ErrorKind::cancelled);
  this->theirs().set("never", "after all").get();
  EXPECT_EQ(this->mine().get("never").get(), "after all");
}

TYPED_TEST_P(StoreSuite, AWaitEndsAtItsDeadline) {
  using std::chrono::milliseconds;
  const std::uint64_t version = this->mine().list("").get().version;
  const auto begun = rpc::Clock::now();
  EXPECT_EQ(this->kind_of(this->mine().get("never", {.timeout = milliseconds{30}})),
            rpc::ErrorKind::deadline_exceeded);
  EXPECT_GE(rpc::Clock::now() - begun, milliseconds{30});
  EXPECT_EQ(this->kind_of(this->mine().wait({"never"}, {.timeout = milliseconds{1}})),
            rpc::ErrorKind::deadline_exceeded);
  EXPECT_EQ(this->kind_of(this->mine().watch("never", version, {.timeout = milliseconds{1}})),
            rpc::ErrorKind::deadline_exceeded);
}

TYPED_TEST_P(StoreSuite, AContinuationMayUseTheStore) {
  rpc::Promise<std::string> promise;
  auto future = promise.future();
  this->mine()
      .get("first", this->bounded)
      .then([&, promise = std::move(promise)](rpc::Result<std::string>&&) mutable {
        this->mine()
            .get("second", this->bounded)
            .then([promise = std::move(promise)](rpc::Result<std::string>&& second) mutable {
              promise.complete(std::move(second));
            });
      });
  this->theirs().set("second", "value").get();
  this->theirs().set("first", "").get();
  EXPECT_EQ(future.get(), "value");
}

// --- Leases ---

TYPED_TEST_P(StoreSuite, AnUnrenewedLeaseEndsWithItsKeys) {
  const rpc::StoreLease lease = this->mine().grant(this->ttl).get();
  EXPECT_GE(lease.ttl, this->ttl);
  this->mine().set("stays", "1").get();
  this->mine().set("leased/1", "1", lease.id).get();
  EXPECT_TRUE(this->mine().compare_set("leased/2", std::nullopt, "2", lease.id).get().stored);
  this->await_removal(this->theirs(), "leased/1");
  this->await_removal(this->theirs(), "leased/2");
  EXPECT_EQ(this->theirs().list("").get().entries, (std::map<std::string, std::string>{{"stays", "1"}}));
  EXPECT_EQ(this->kind_of(this->mine().renew(lease.id)), rpc::ErrorKind::lease_lost);
  EXPECT_EQ(this->kind_of(this->mine().set("leased/1", "1", lease.id)), rpc::ErrorKind::lease_lost);
  EXPECT_EQ(this->kind_of(this->mine().compare_set("leased/1", std::nullopt, "1", lease.id)),
            rpc::ErrorKind::lease_lost);
  this->mine().revoke(lease.id).get();
}

TYPED_TEST_P(StoreSuite, ARenewedLeaseStays) {
  const rpc::StoreLease kept = this->mine().grant(this->ttl).get();
  const rpc::StoreLease alone = this->mine().grant(this->ttl).get();
  auto loop = std::make_shared<rpc::AsioLoop>();
  {
    const rpc::LeaseKeeper keeper(this->backend_.mine, loop, kept,
                                  [](const rpc::Error& error) { ADD_FAILURE() << error.what(); });
    this->mine().set("kept", "", kept.id).get();
    this->mine().set("alone", "", alone.id).get();
    this->await_removal(this->theirs(), "alone");
    EXPECT_EQ(this->theirs().try_get("kept").get(), "");
    this->mine().renew(kept.id).get();
  }
  this->mine().revoke(kept.id).get();
  loop->stop();
}

TYPED_TEST_P(StoreSuite, AKeeperIsNotifiedThatItsLeaseIsLost) {
  const rpc::StoreLease lease = this->mine().grant(this->ttl).get();
  auto loop = std::make_shared<rpc::AsioLoop>();
  Handover<rpc::ErrorKind> lost;
  {
    const rpc::LeaseKeeper keeper(this->backend_.mine, loop, lease,
                                  [&](const rpc::Error& error) { lost.give(error.kind()); });
    this->theirs().revoke(lease.id).get();
    EXPECT_EQ(lost.take(), rpc::ErrorKind::lease_lost);
  }
  loop->stop();
}

TYPED_TEST_P(StoreSuite, ARevokedLeaseRemovesItsKeysAtOnce) {
  const rpc::StoreLease lease = this->mine().grant(std::chrono::hours{1}).get();
  this->mine().set("a/1", "", lease.id).get();
  this->mine().set("a/2", "", lease.id).get();
  std::uint64_t version = this->theirs().list("a/").get().version;
  auto watch = this->theirs().watch("a/", version, this->bounded);
  this->theirs().revoke(lease.id).get();
  (void)watch.get();
  EXPECT_TRUE(this->theirs().list("a/").get().entries.empty());
  this->mine().revoke(lease.id).get();
}

TYPED_TEST_P(StoreSuite, AKeyBelongsToTheLeaseOfItsLastChange) {
  const rpc::StoreLease first = this->mine().grant(std::chrono::hours{1}).get();
  const rpc::StoreLease second = this->mine().grant(std::chrono::hours{1}).get();
  for (const char* key : {"set", "exchanged", "added", "again", "moved"})
    this->mine().set(key, "1", first.id).get();
  this->mine().set("set", "2").get();
  EXPECT_TRUE(this->mine().compare_set("exchanged", "1", "2").get().stored);
  EXPECT_EQ(this->mine().add("added", 1).get(), 2);
  this->mine().remove("again").get();
  this->mine().set("again", "2").get();
  this->mine().set("moved", "2", second.id).get();
  this->mine().revoke(first.id).get();
  std::map<std::string, std::string> left{{"set", "2"}, {"exchanged", "2"}, {"added", "2"}, {"again", "2"}};
  auto with_moved = left;
  with_moved["moved"] = "2";
  EXPECT_EQ(this->theirs().list("").get().entries, with_moved);
  this->mine().revoke(second.id).get();
  EXPECT_EQ(this->theirs().list("").get().entries, left);
}

TYPED_TEST_P(StoreSuite, ALeaseNeedsATimeToLive) {
  for (const int ttl : {0, -1})
    EXPECT_EQ(this->kind_of(this->mine().grant(std::chrono::seconds{ttl})), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(this->kind_of(this->mine().renew(12345)), rpc::ErrorKind::lease_lost);
  EXPECT_EQ(this->kind_of(this->mine().set("key", "", 12345)), rpc::ErrorKind::lease_lost);
  EXPECT_EQ(this->mine().try_get("key").get(), std::nullopt);
}

TYPED_TEST_P(StoreSuite, AClientsDeathRemovesTheKeysOfItsLease) {
  auto loop = std::make_shared<rpc::AsioLoop>();
  auto client = this->backend_.client();
  const rpc::StoreLease lease = client->grant(this->ttl).get();
  auto keeper = std::make_unique<rpc::LeaseKeeper>(client, loop, lease, [](const rpc::Error&) {});
  client->set("alive", "", lease.id).get();
  EXPECT_EQ(this->mine().get("alive", this->bounded).get(), "");
  keeper.reset();
  Event let_go;
  loop->post([&] { let_go.set(); });  // after the posts of the keeper
  let_go.wait();
  client.reset();
  this->await_removal(this->theirs(), "alive");
  loop->stop();
}

// --- The end of the store ---

TYPED_TEST_P(StoreSuite, CallsFailAfterTheStoreHasEnded) {
  const auto gone = [](rpc::ErrorKind kind) {
    return kind == rpc::ErrorKind::shut_down || kind == rpc::ErrorKind::peer_lost ||
           kind == rpc::ErrorKind::unavailable;
  };
  const auto store = this->backend_.impatient();
  const std::uint64_t version = store->list("").get().version;
  auto get = store->get("never");
  auto wait = store->wait({"never", "ever"});
  auto watch = store->watch("never", version);
  EXPECT_EQ(store->try_get("never").get(), std::nullopt);
  this->backend_.end();
  EXPECT_PRED1(gone, this->kind_of(std::move(get)));
  EXPECT_PRED1(gone, this->kind_of(std::move(wait)));
  EXPECT_PRED1(gone, this->kind_of(std::move(watch)));
  EXPECT_PRED1(gone, this->kind_of(store->get("never")));
  EXPECT_PRED1(gone, this->kind_of(store->watch("never", version)));
}

REGISTER_TYPED_TEST_SUITE_P(StoreSuite, ReturnsStoredValues, ValuesHoldAnyBytes, KeysMayHoldAnyBytes,
                            GetWaitsForTheKey, ManyMayWaitForOneKey, AddCountsAcrossClients,
                            AddRefusesValuesThatAreNotNumbers,
                            CompareSetStoresOnlyIfTheKeyHasTheExpectedValue, CompareSetHasOneWinner,
                            WaitEndsWhenAllKeysExist, RemoveReportsWhetherTheKeyExisted,
                            ListReturnsTheKeysWithAPrefix, AWatchReportsChangesSinceAVersion,
                            AWatcherSeesEachKeysValuesInOrder, AWaitIsCancelled, AWaitEndsAtItsDeadline,
                            AContinuationMayUseTheStore, AnUnrenewedLeaseEndsWithItsKeys, ARenewedLeaseStays,
                            AKeeperIsNotifiedThatItsLeaseIsLost, ARevokedLeaseRemovesItsKeysAtOnce,
                            AKeyBelongsToTheLeaseOfItsLastChange, ALeaseNeedsATimeToLive,
                            AClientsDeathRemovesTheKeysOfItsLease, CallsFailAfterTheStoreHasEnded);

}  // namespace weft::test

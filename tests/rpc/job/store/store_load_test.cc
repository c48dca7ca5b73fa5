// A store that one agent keeps for a large job: thousands of clients that wait.
#include <weft/rpc/job/store/file_store.h>
#include <weft/rpc/job/store/memory_store.h>
#include <weft/rpc/job/store/remote_store.h>
#include <weft/rpc/job/store/store_service.h>

#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "tests/support/cluster.h"
#include "tests/support/sanitizer.h"
#include "tests/support/shared_loop.h"

namespace weft::rpc::store_load_test {
namespace {

constexpr std::size_t max_clients = test::under_tsan ? 320 : 2000, waits_each = 3, keys = 40;

// The number of clients for which the system permits enough descriptors. Each needs two, because both ends
// are in this process.
std::size_t clients_that_fit() {
  const std::size_t files = test::descriptors_permitted(2 * max_clients + 200);
  return files < 400 ? 0 : std::min(max_clients, (files - 200) / 2);
}

// A client with its own connection. All clients run on one thread.
struct Client {
  Client(test::SharedLoop& loop, std::size_t number, const std::string& server)
      : agent(loop.runtime(), AgentOptions{.name = "client" + std::to_string(number), .same_host = false}),
        store(agent.connect(server)) {}
  Agent agent;
  RemoteStore store;
};

// An agent that keeps a store.
struct Server {
  Agent agent{AgentOptions{.name = "server", .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1}};
  const std::shared_ptr<MemoryStore> store = std::make_shared<MemoryStore>(agent.core()->pick_loop());
  Server() { serve_store(*agent.core(), store); }
  std::string address() const { return agent.addresses().front(); }
};

TEST(StoreLoad, ThousandsOfClientsWaitAndSurviveADeath) {
  const std::size_t clients = clients_that_fit();
  RecordProperty("clients", static_cast<int>(clients));
  ASSERT_GE(clients, 320U)
      << "the system gives this process too few descriptors for the test to mean anything";
  Server server;
  const auto& memory = server.store;
  test::SharedLoop loop;
  std::vector<std::unique_ptr<Client>> all;
  std::vector<Future<std::string>> waits;
  for (std::size_t i = 0; i < clients; ++i) {
    all.push_back(std::make_unique<Client>(loop, i, server.address()));
    for (std::size_t n = 0; n < waits_each; ++n)
      waits.push_back(all.back()->store.get("key" + std::to_string((i + n) % keys)));
  }
  test::eventually("all wait", [&] { return memory->waiting() == clients * waits_each; });
  EXPECT_EQ(server.agent.counts().connections_made, clients);

  loop.run([&] { all[clients / 2] = nullptr; });
  test::eventually("its waits are dropped", [&] { return memory->waiting() == (clients - 1) * waits_each; });
  for (std::size_t n = 0; n < waits_each; ++n)
    EXPECT_EQ(test::kind_of([&] { return test::got(std::move(waits[clients / 2 * waits_each + n])); }),
              ErrorKind::shut_down);

  for (std::size_t key = 0; key < keys; ++key)
    test::got(all[key]->store.set("key" + std::to_string(key), std::to_string(key)));
  for (std::size_t i = 0; i < clients; ++i)
    for (std::size_t n = 0; n < waits_each && i != clients / 2; ++n)
      EXPECT_EQ(test::got(std::move(waits[i * waits_each + n])), std::to_string((i + n) % keys));
  EXPECT_EQ(memory->waiting(), 0U);
  loop.run([&] { all.clear(); });
}

// Many clients run the following at the same time: each uses its own keys, shared keys, and a key of its
// neighbour, for which it waits.
// A client that increments a shared number retries once per competitor, so ThreadSanitizer runs use fewer
// clients.
constexpr std::size_t workers = test::under_tsan ? 128 : 256, shared_numbers = 16;

std::string own_key(std::size_t worker, std::size_t round) {
  return "own/" + std::to_string(worker) + "/" + std::to_string(round);
}

// Increments the number in the key while other clients do the same. Returns how many attempts failed.
Task<std::size_t> count_up(Store* store, std::string key) {
  std::optional<std::string> expected;
  for (std::size_t lost = 0;; ++lost) {
    const std::string next = std::to_string(expected ? std::stoull(*expected) + 1 : 1);
    const StoreExchange exchange = co_await store->compare_set(key, expected, next);
    if (exchange.stored) co_return lost;
    expected = exchange.actual;
  }
}

Task<std::size_t> work(Store* store, std::size_t worker, std::size_t rounds) {
  std::size_t lost = 0;
  for (std::size_t round = 0; round < rounds; ++round) {
    const std::size_t neighbour = (worker + 1) % workers;
    co_await store->set(own_key(worker, round), "of " + std::to_string(worker));
    co_await store->add("sum", static_cast<std::int64_t>(worker));
    lost += co_await count_up(store, "number/" + std::to_string((worker + round) % shared_numbers));
    std::vector<std::string> awaited{own_key(neighbour, round), own_key(worker, round)};
    co_await store->wait(std::move(awaited));
    const std::string theirs = co_await store->get(own_key(neighbour, round));
    if (theirs != "of " + std::to_string(neighbour)) throw Error(ErrorKind::internal, "got " + theirs);
  }
  co_return lost;
}

// Checks the keys that the clients must have left.
void expect_all(Store& store, std::size_t rounds) {
  EXPECT_EQ(test::got(store.get("sum")), std::to_string(rounds * workers * (workers - 1) / 2));
  for (std::size_t n = 0; n < shared_numbers; ++n)
    EXPECT_EQ(test::got(store.get("number/" + std::to_string(n))),
              std::to_string(rounds * workers / shared_numbers));
  EXPECT_EQ(test::got(store.list("own/")).entries.size(), workers * rounds);
}

// Waits for all clients, and prints the duration.
void finish(std::vector<Future<std::size_t>> done, Clock::time_point begun, std::size_t rounds) {
  std::size_t lost = 0;
  std::vector<Result<std::size_t>> results;  // of all of them: each uses its store until it has ended
  for (auto& one : done) results.push_back(capture([&] { return test::got(std::move(one)); }));
  for (auto& result : results) lost += std::move(result).get();
  const auto took = std::chrono::duration<double>(Clock::now() - begun).count();
  std::printf("  %.2f s: %zu clients, %zu rounds each; %zu of the exchanges came too late\n", took, workers,
              rounds, lost);
}

TEST(StoreLoad, HundredsOfClientsLoseNoChange) {
  constexpr std::size_t rounds = 10;
  if (const std::size_t files = 2 * workers + 200; test::descriptors_permitted(files) < files)
    GTEST_SKIP() << "too few file descriptors are permitted";
  Server server;
  test::SharedLoop loop;
  std::vector<std::unique_ptr<Client>> all;
  const auto begun = Clock::now();
  std::vector<Future<std::size_t>> done;
  for (std::size_t i = 0; i < workers; ++i) {
    all.push_back(std::make_unique<Client>(loop, i, server.address()));
    done.push_back(work(&all.back()->store, i, rounds).start(loop.handlers()));
  }
  finish(std::move(done), begun, rounds);
  expect_all(*server.store, rounds);
  EXPECT_EQ(server.store->waiting(), 0U);
  loop.run([&] { all.clear(); });
}

// The same with a file store, which each client opens separately.
TEST(StoreLoad, HundredsOfClientsOfOneFileLoseNoChange) {
  constexpr std::size_t rounds = 2;
  const auto path =
      std::filesystem::temp_directory_path() / ("weft-store-load-" + std::to_string(::getpid()));
  test::SharedLoop loop;
  std::vector<std::unique_ptr<FileStore>> all;
  const auto begun = Clock::now();
  std::vector<Future<std::size_t>> done;
  for (std::size_t i = 0; i < workers; ++i) {
    all.push_back(std::make_unique<FileStore>(path.string(), FileStoreOptions{.timeout = test::too_long}));
    done.push_back(work(all.back().get(), i, rounds).start(loop.handlers()));
  }
  finish(std::move(done), begun, rounds);
  expect_all(*all.front(), rounds);
  test::got(all.front()->discard());
}

}  // namespace
}  // namespace weft::rpc::store_load_test

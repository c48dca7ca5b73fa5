// A store that one agent keeps for a large job: thousands of clients who wait.
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/asio_loop.h>
#include <weft/rpc/store/memory_store.h>
#include <weft/rpc/store/remote_store.h>
#include <weft/rpc/store/store_service.h>
#include <weft/rpc/transport/tcp_transport.h>

#include <gtest/gtest.h>
#include <asio/executor_work_guard.hpp>
#include <asio/io_context.hpp>
#include <asio/post.hpp>

#include <sys/resource.h>

#include <algorithm>
#include <thread>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"
#include "tests/support/sanitizer.h"

namespace weft::rpc::store_load_test {
namespace {

constexpr std::size_t most_clients = test::under_tsan ? 320 : 2000, waits_each = 3, keys = 40;

// As many as the system has descriptors for, two each: both ends are in this process.
std::size_t clients_that_fit() {
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 2 * most_clients + 200);
  ::setrlimit(RLIMIT_NOFILE, &files);
  ::getrlimit(RLIMIT_NOFILE, &files);
  return files.rlim_cur < 400 ? 0 : std::min<std::size_t>(most_clients, (files.rlim_cur - 200) / 2);
}

class OnContext final : public Executor {
 public:
  explicit OnContext(asio::io_context& context) : context_(context) {}
  void post(Job job) override { asio::post(context_, std::move(job)); }

 private:
  asio::io_context& context_;
};

// A client with a connection of its own; all live on one thread.
struct Client {
  Client(asio::io_context& context, std::size_t number, const std::string& server)
      : agent(Runtime{.loops = {std::make_shared<AsioLoop>(context)},
                      .handlers = std::make_shared<OnContext>(context),
                      .incarnation = number + 1,
                      .transports = {make_tcp_transport()}},
              AgentOptions{.name = "client" + std::to_string(number), .same_host = false}),
        store(agent.connect(server)) {}
  Agent agent;
  RemoteStore store;
};

TEST(StoreLoad, ThousandsOfClientsWaitAndSurviveADeath) {
  const std::size_t clients = clients_that_fit();
  RecordProperty("clients", static_cast<int>(clients));
  ASSERT_GE(clients, 320U)
      << "the system gives this process too few descriptors for the test to mean anything";
  Agent server(AgentOptions{.name = "server", .listen = {"tcp://127.0.0.1:0"}, .handler_threads = 1});
  const auto memory = std::make_shared<MemoryStore>(server.core()->pick_loop());
  serve_store(*server.core(), memory);
  asio::io_context context;
  auto work = asio::make_work_guard(context);
  std::thread thread([&] { context.run(); });
  std::vector<std::unique_ptr<Client>> all;
  std::vector<Future<std::string>> waits;
  for (std::size_t i = 0; i < clients; ++i) {
    all.push_back(std::make_unique<Client>(context, i, server.addresses().front()));
    for (std::size_t n = 0; n < waits_each; ++n)
      waits.push_back(all.back()->store.get("key" + std::to_string((i + n) % keys)));
  }
  test::eventually("all wait", [&] { return memory->waiting() == clients * waits_each; });
  EXPECT_EQ(server.counts().connections_made, clients);

  test::Event dead;
  asio::post(context, [&] {
    all[clients / 2] = nullptr;
    dead.set();
  });
  dead.wait();
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
  work.reset();
  context.stop();
  thread.join();
  all.clear();
}

}  // namespace
}  // namespace weft::rpc::store_load_test

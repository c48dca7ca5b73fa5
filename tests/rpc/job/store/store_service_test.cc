// A store that an agent serves: the store suite in process and over TCP, and the end of its clients and of
// its server.
#include <weft/rpc/job/store/memory_store.h>
#include <weft/rpc/job/store/remote_store.h>
#include <weft/rpc/job/store/store_service.h>
#include <weft/rpc/transport/in_process.h>

#include "tests/support/cluster.h"
#include "tests/support/store_suite.h"

namespace weft::test {

// A server and its clients.
struct ServedBackend : StoreBackend {
  explicit ServedBackend(const std::string& address, std::shared_ptr<rpc::InProcess> net = nullptr)
      : network(std::move(net)),
        server({.name = "server", .listen = {address}, .handler_threads = 1, .in_process = network}),
        memory(std::make_shared<rpc::MemoryStore>(server.core()->pick_loop())) {
    rpc::serve_store(*server.core(), memory);
    mine = client();
    theirs = client();
  }
  ~ServedBackend() override { mine = theirs = nullptr; }
  std::shared_ptr<rpc::Store> client() override {
    struct Client {
      rpc::Agent agent;
      rpc::RemoteStore store;
      Client(rpc::AgentOptions options, const std::string& address)
          : agent(std::move(options)), store(agent.connect(address)) {}
    };
    auto client = std::make_shared<Client>(
        rpc::AgentOptions{
            .name = "client" + std::to_string(++clients), .handler_threads = 1, .in_process = network},
        server.addresses().front());
    return {client, &client->store};
  }
  void end() override { server.shut_down(); }

  int clients = 0;
  std::shared_ptr<rpc::InProcess> network;
  rpc::Agent server;
  std::shared_ptr<rpc::MemoryStore> memory;
};

struct TcpBackend : ServedBackend {
  TcpBackend() : ServedBackend("tcp://127.0.0.1:0") {}
};
struct InProcessBackend : ServedBackend {
  InProcessBackend() : ServedBackend("inproc://server", std::make_shared<rpc::InProcess>()) {}
};

INSTANTIATE_TYPED_TEST_SUITE_P(Tcp, StoreSuite, TcpBackend);
INSTANTIATE_TYPED_TEST_SUITE_P(InProcess, StoreSuite, InProcessBackend);

}  // namespace weft::test

namespace weft::rpc::store_service_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

constexpr CallOptions bounded{.timeout = 40s};

template <class T>
ErrorKind kind_of(Future<T> future) {
  return test::kind_of([&] { return test::got(std::move(future)), 0; }).value_or(ErrorKind::internal);
}

template <class Backend>
void drop_the_waits_of_a_dead_client() {
  Backend backend;
  std::vector<Future<std::string>> waits;
  for (int i = 0; i < 50; ++i) waits.push_back(backend.mine->get("never"));
  auto theirs = backend.theirs->get("never");
  eventually("all wait", [&] { return backend.memory->waiting() == 51; });
  backend.mine = nullptr;
  eventually("one waits", [&] { return backend.memory->waiting() == 1; });
  for (auto& wait : waits) EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::shut_down);
  theirs.cancel();
  eventually("nobody waits", [&] { return backend.memory->waiting() == 0; });
}

TEST(StoreService, TheDeathOfAClientDropsItsWaits) {
  drop_the_waits_of_a_dead_client<TcpBackend>();
  drop_the_waits_of_a_dead_client<InProcessBackend>();
}

TEST(StoreService, AWaitFailsWhenItsServerShutsDown) {
  TcpBackend backend;
  auto wait = backend.mine->get("never");
  eventually("it waits", [&] { return backend.memory->waiting() == 1; });
  backend.server.shut_down();
  EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::peer_lost);
}

int answer() { return 42; }
using Answer = Function<"answer", &answer>;

TEST(StoreService, WaitsHoldNoHandlerThread) {
  TcpBackend backend;  // with one handler thread
  backend.server.serve<Answer>();
  std::vector<Future<std::string>> waits;
  for (int i = 0; i < 20; ++i) waits.push_back(backend.mine->get("key", bounded));
  Agent caller(AgentOptions{.name = "caller"});
  EXPECT_EQ(caller.connect(backend.server.addresses().front()).call<Answer>().get(), 42);
  backend.theirs->set("key", "value").get();
  for (auto& wait : waits) EXPECT_EQ(wait.get(), "value");
}

}  // namespace
}  // namespace weft::rpc::store_service_test

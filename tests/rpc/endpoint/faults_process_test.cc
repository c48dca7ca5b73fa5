// Peers in separate processes that die, are stopped, do not read, or connect by the thousand.
#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/transport/shm/shm_transport.h>
#include <weft/rpc/transport/transport.h>

#include <sys/resource.h>

#include <filesystem>
#include <fstream>

#include "tests/support/child.h"
#include "tests/support/cluster.h"
#include "tests/support/leaks.h"
#include "tests/support/loopback.h"
#include "tests/support/raw_peer.h"
#include "tests/support/sanitizer.h"
#include "tests/support/shm.h"

namespace weft::rpc::faults_process_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using probe::Socket;

class Vault {
 public:
  std::uint64_t put(Buffer bytes) { return bytes.size(); }
  Buffer take(std::uint64_t bytes) { return Buffer::allocate(bytes); }
  int one() { return 1; }
  // Holds the call until it is cancelled.
  Future<void> hold(CallContext& call) {
    auto promise = std::make_shared<Promise<void>>();
    call.on_cancel([this, promise] {
      promise->fail(Error(ErrorKind::cancelled, "the caller is gone"));
      ++cancelled;
    });
    ++holding;
    return promise->future();
  }
  using Service =
      rpc::Service<"vault", Method<"put", &Vault::put, rpc::idempotent>, Method<"take", &Vault::take>,
                   Method<"one", &Vault::one>, Method<"hold", &Vault::hold>>;
  std::atomic<int> holding{0}, cancelled{0};
};

AgentOptions options(const std::string& name, const std::string& listen = "tcp://127.0.0.1:0") {
  AgentOptions options;
  options.name = name;
  if (!listen.empty()) options.listen = {listen};
  options.handler_threads = 2;
  options.same_host = false;  // each test chooses the transport
  options.log = [](const LogRecord&) {};
  return options;
}

// Options of agents to which hundreds of others connect at once.
AgentOptions patient(AgentOptions options) {
  options.connect_timeout = options.handshake_timeout = test::too_long;
  return options;
}

// Runs a vault in this process and writes its address to the pipe.
void keep_vault(int pipe, const std::string& listen, Heartbeat heartbeat = {}) {
  auto with = options("vault", listen);
  with.heartbeat = heartbeat;
  auto* agent = new Agent(std::move(with));
  agent->serve(std::make_shared<Vault>());
  say(pipe, agent->addresses().front());
}
Child vault(const std::string& listen = "tcp://127.0.0.1:0", Heartbeat heartbeat = {}) {
  return Child([=](int pipe) { keep_vault(pipe, listen, heartbeat); });
}

// Each way between processes.
class DeathTest : public testing::TestWithParam<std::string> {
 protected:
  std::string listen() const {
    if (GetParam() == "tcp") return "tcp://127.0.0.1:0";
    return GetParam() + "://" + (folder_ / "vault").string();
  }
  DeathTest() {
    char name[] = "/tmp/weft-death-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~DeathTest() override { std::filesystem::remove_all(folder_); }
  std::filesystem::path folder_;
};
INSTANTIATE_TEST_SUITE_P(Ways, DeathTest, testing::Values("tcp", "unix", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(DeathTest, OfTheCalleeDuringATensorIsReportedToTheCaller) {
  Child server = vault(listen());
  const std::string address = server.line();
  Agent client(options("client", ""));
  const Peer peer = client.connect(address);
  EXPECT_EQ(got(peer.call<&Vault::put>(Buffer::allocate(1000))), 1000U);
  server.stop();  // so that it receives some of the bytes and not all
  auto bytes = Buffer::allocate(std::size_t{64} << 20);
  const std::weak_ptr<void> kept = bytes.owner();
  auto put = peer.call<&Vault::put>(bytes);
  bytes = {};
  auto take = peer.call<&Vault::take>(std::size_t{64} << 20);
  eventually("both calls are in flight", [&] { return client.counts().waiting == 2; });
  server.kill();
  expect_error([&] { got(std::move(put)); }, ErrorKind::peer_lost, Execution::maybe_executed);
  // This call counts from its creation, and may not have been sent before the kill.
  const auto second = test::error_of([&] { got(std::move(take)); });
  ASSERT_TRUE(second);
  if (second->execution() == Execution::not_sent) {
    EXPECT_EQ(second->kind(), ErrorKind::unavailable);
  } else {
    EXPECT_EQ(second->kind(), ErrorKind::peer_lost);
  }
  eventually("nothing is kept", [&] { return kept.expired() && client.counts().connections == 0; });
  eventually("no call holds memory", [&] { return client.counts().waiting_bytes == 0; });
}

TEST_P(DeathTest, OfTheCallerDuringATensorReleasesItsMemory) {
  // The client sends until it is killed.
  Child client([](int pipe, int orders) {
    auto* agent = new Agent(options("client", ""));
    const Peer peer = agent->connect(line_of(orders));
    for (;;) {
      got(peer.call<&Vault::put>(Buffer::allocate(std::size_t{16} << 20)));
      say(pipe, "one");
    }
  });
  auto with = options("vault", listen());
  with.receive_pool = 0;
  Agent server(std::move(with));
  server.serve(std::make_shared<Vault>());
  client.tell(server.addresses().front());
  EXPECT_EQ(client.line(), "one");
  client.kill();
  eventually("its connection has ended", [&] { return server.counts().connections == 0; });
  eventually("nothing is held",
             [&] { return server.counts().serving_bytes == 0 && server.counts().serving == 0; });
}

TEST(DeathTest, ANewIncarnationAtTheSameAddressIsRecognized) {
  Child first = vault("tcp://" + test::own_loopback() + ":0");
  Child second([](int pipe, int orders) { keep_vault(pipe, line_of(orders)); });
  const std::string address = first.line();
  Agent client(options("client", ""));
  const Peer peer = client.connect(address);
  const AgentId id = got(peer.ready());
  const Peer only = peer.only(id);
  EXPECT_EQ(got(only.call<&Vault::one>()), 1);
  first.kill();
  eventually("the loss is known", [&] { return client.counts().connections == 0; });
  second.tell(address);
  ASSERT_EQ(second.line(), address);
  EXPECT_EQ(kind_of([&] { got(only.call<&Vault::one>()); }), ErrorKind::peer_lost);
  EXPECT_EQ(got(peer.call<&Vault::one>()), 1);
  EXPECT_NE(peer.identity(), id);
}

TEST(StandstillTest, AStoppedPeerIsLostAndReconnectsWhenItContinues) {
  const Heartbeat heartbeat{.interval = 50ms, .timeout = 1s};
  Child server = vault("tcp://127.0.0.1:0", heartbeat);
  const std::string address = server.line();
  auto with = options("client", "");
  with.heartbeat = heartbeat;
  Agent client(std::move(with));
  const Peer peer = client.connect(address);
  const AgentId id = got(peer.ready());
  server.stop();
  expect_error([&] { got(peer.call<&Vault::one>()); }, ErrorKind::peer_lost, "nothing was received");
  server.go_on();
  eventually("it is reached again",
             [&] { return !kind_of([&] { got(peer.call<&Vault::one>()); }).has_value(); });
  EXPECT_EQ(peer.identity(), id) << "it never died";
}

TEST(SlowReaderTest, BoundsTheMemoryOfItsCallerAndDelaysNoOtherPeer) {
  Child other = vault();
  const std::string there = other.line();
  auto with = options("client", "");
  with.limits.outgoing_bytes = std::uint64_t{8} << 20;
  with.limits.outgoing_calls = 500;
  Agent client(std::move(with));
  Socket listener = Socket::listening();
  const Peer slow = client.connect(listener.address());
  std::vector<Future<std::uint64_t>> calls;
  for (int i = 0; i < 1000; ++i) calls.push_back(slow.call<&Vault::put>(Buffer::allocate(64 << 10)));
  Socket reader = listener.accept();
  ASSERT_TRUE(reader.send(OutgoingMessage::hello({.name = "slow", .incarnation = 7}).head.bytes()));
  EXPECT_LE(client.counts().waiting_bytes, (std::uint64_t{8} << 20) + (64 << 10));
  EXPECT_LE(client.counts().waiting, 500U);
  std::size_t refused = 0;
  for (auto& call : calls)
    if (call.ready()) {
      EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::resource_exhausted);
      ++refused;
    }
  EXPECT_GE(refused, 500U);
  // Between two frames, other peers are served.
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(reader.next());
    EXPECT_EQ(got(client.connect(there).call<&Vault::one>()), 1);
  }
  EXPECT_EQ(kind_of([&] { got(slow.with({.timeout = 50ms}).call<&Vault::one>()); }),
            ErrorKind::deadline_exceeded);
}

// The peer does not listen, so only the end of its process distinguishes its death from a lost connection.
TEST(AbsenceTest, EndsWithTheProcessOfAPeerOnThisHost) {
  Child caller([](int, int orders) {
    const std::string address = line_of(orders);
    auto* agent = new Agent(options("caller", ""));
    auto held = agent->connect(address).call<&Vault::hold>();
    while (true) ::pause();
  });
  auto with = options("server");
  with.heartbeat = {0s, 1h};
  Agent server(std::move(with));
  const auto vault = std::make_shared<Vault>();
  server.serve(vault);
  caller.tell(server.addresses().front());
  eventually("the call is served", [&] { return vault->holding == 1; });
  EXPECT_EQ(vault->cancelled, 0);
  caller.kill();
  eventually("the call is cancelled", [&] { return vault->cancelled == 1; });
}

std::size_t more_files(std::size_t wanted) {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, wanted + 200);
  ::setrlimit(RLIMIT_NOFILE, &limit);
  return limit.rlim_cur < 400 ? 0 : std::min<std::size_t>(wanted, limit.rlim_cur - 200);
}

std::size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::size_t pages = 0, resident = 0;
  file >> pages >> resident;
  return resident * 4096;
}

TEST(StormTest, TenThousandIdleConnectionsAreKeptAndOneMoreIsServed) {
  const std::size_t wanted = more_files(10'000);
  ASSERT_GE(wanted, 500U)
      << "the system gives this process too few descriptors for the test to mean anything";
  // The peers complete their handshakes and are then idle. They are in a separate process, because each
  // connection has two ends.
  Child many([&](int pipe, int orders) {
    const std::string address = line_of(orders);
    std::vector<Socket> sockets;
    for (std::size_t i = 0; i < wanted; ++i) {
      const HelloInfo hello{.name = "idle" + std::to_string(i), .incarnation = i + 1};
      sockets.push_back(Socket::connected(address));
      sockets.back().send(OutgoingMessage::hello(hello).head.bytes());
    }
    for (Socket& socket : sockets)
      if (!socket.next()) say(pipe, "one was closed");
    say(pipe, "all are there");
    while (true) ::pause();
  });
  auto with = options("server");
  with.heartbeat.interval = 0s;  // the peers would not answer
  with.limits.header = 1 << 20;
  Agent server(patient(std::move(with)));
  server.serve(std::make_shared<Vault>());
  const test::Leaks idle;
  const std::size_t before = resident_bytes();
  many.tell(server.addresses().front());
  ASSERT_EQ(many.line(), "all are there");
  eventually("all are counted", [&] { return server.counts().connections == wanted; });
  const std::size_t each = (resident_bytes() - before) / wanted;
  RecordProperty("connections", static_cast<int>(wanted));
  RecordProperty("bytes_per_connection", static_cast<int>(each));
  std::printf("%zu idle connections: %zu bytes of memory each\n", wanted, each);
  if (!test::sanitized) {
    EXPECT_LE(each, std::size_t{64} << 10);
  }
  {
    Agent client(patient(options("client", "")));
    EXPECT_EQ(got(client.connect(server.addresses().front()).call<&Vault::one>()), 1);
  }
  many.kill();
  eventually("all have gone, and their descriptors",
             [&] { return server.counts().connections == 0 && test::Leaks() == idle; });
  idle.expect_the_same();
}

// With the default options: some agents connect through shared memory, and the others do not.
TEST(StormTest, AgentsOfOneHostConnectBeyondTheLimitForSharedMemory) {
  constexpr std::size_t wanted = 600;
  if (more_files(2 * wanted) < 2 * wanted) GTEST_SKIP() << "too few descriptors";
  if (!test::shm_supported()) GTEST_SKIP() << "no shared memory";
  Child many([](int pipe, int orders) {
    const std::string address = line_of(orders);
    const auto loop = std::make_shared<AsioLoop>();
    const auto handlers = std::make_shared<HandlerPool>(1);
    auto* agents = new std::vector<std::unique_ptr<Agent>>;
    std::vector<Future<AgentId>> all;
    for (std::size_t i = 0; i < wanted; ++i) {
      Runtime runtime;
      runtime.loops = {loop};
      runtime.handlers = handlers;
      runtime.incarnation = i + 1;
      runtime.transports = {make_tcp_transport(), make_shm_transport()};
      AgentOptions with;
      with.name = "idle" + std::to_string(i);
      with.log = [](const LogRecord&) {};
      agents->push_back(std::make_unique<Agent>(std::move(runtime), patient(std::move(with))));
      all.push_back(agents->back()->connect(address).ready());
    }
    for (auto& one : all) got(std::move(one));
    say(pipe, "all are there");
    while (true) ::pause();
  });
  AgentOptions with;
  with.name = "server";
  with.listen = {"tcp://127.0.0.1:0"};
  Agent server(patient(with));
  const std::size_t before = resident_bytes(), files = probe::open_files();
  many.tell(server.addresses().front());
  ASSERT_EQ(many.line(), "all are there");
  eventually("all are counted", [&] { return server.counts().connections == wanted; });
  EXPECT_EQ(server.counts().connections_refused, 0U);
  EXPECT_LE(probe::open_files() - files, wanted + with.max_shared + 20) << "one more for each that shares";
  const std::size_t each = (resident_bytes() - before) / wanted;
  std::printf("%zu connections of one host: %zu bytes of memory each\n", wanted, each);
  if (!test::sanitized) {
    EXPECT_LE(each, std::size_t{64} << 10);
  }
  many.kill();
  eventually("all have gone", [&] { return server.counts().connections == 0; });
}

TEST(StormTest, SilentConnectionsDoNotExcludeOtherPeers) {
  const std::size_t wanted = std::min<std::size_t>(more_files(6000) / 2, 3000);
  auto with = options("server");
  with.max_handshakes = 100;
  Agent server(patient(std::move(with)));
  server.serve(std::make_shared<Vault>());
  std::vector<Socket> silent;
  for (std::size_t i = 0; i < wanted; ++i) silent.push_back(Socket::connected(server.addresses().front()));
  Agent client(patient(options("client", "")));
  EXPECT_EQ(got(client.connect(server.addresses().front()).call<&Vault::one>()), 1);
  for (std::size_t i = 0; i + 200 < wanted; ++i) {  // the oldest were closed
    while (silent[i].next()) {
    }
  }
  EXPECT_EQ(server.counts().connections, 1U);
}

TEST(DescriptorsTest, AnAgentWithoutFreeDescriptorsContinuesOnceSomeAreFree) {
  Child server([](int pipe) {
    auto with = options("server");
    auto* agent = new Agent(std::move(with));
    agent->serve(std::make_shared<Vault>());
    // The limit leaves three descriptors above those in use.
    const int next = ::dup(0);
    ::close(next);
    const rlimit limit{static_cast<rlim_t>(next) + 3, static_cast<rlim_t>(next) + 3};
    ::setrlimit(RLIMIT_NOFILE, &limit);
    say(pipe, agent->addresses().front());
  });
  const std::string address = server.line();
  Agent client(options("client", ""));
  const Peer peer = client.connect(address);
  EXPECT_EQ(got(peer.call<&Vault::one>()), 1);
  std::vector<Socket> greedy;
  for (int i = 0; i < 10; ++i) greedy.push_back(Socket::connected(address));
  EXPECT_EQ(got(peer.call<&Vault::one>()), 1) << "a connected client is served";
  greedy.clear();
  Agent late(options("late", ""));
  EXPECT_EQ(got(late.connect(address).call<&Vault::one>()), 1);
}

}  // namespace
}  // namespace weft::rpc::faults_process_test

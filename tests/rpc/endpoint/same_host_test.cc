// Agents of one host connect through shared memory automatically. If it is not available, they use the
// address itself.
#include <weft/rpc/testing/test_authority.h>
#include <weft/rpc/transport/shm/companion.h>
#include <weft/rpc/transport/shm/shm_transport.h>

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <filesystem>

#include "tests/support/cluster.h"
#include "tests/support/shm.h"

namespace weft::rpc::same_host_test {
namespace {

using namespace test;

std::string address(CallContext& call) { return call.peer().address; }
using WhichWay = Function<"which_way", &address>;

// Makes a socket file without a listener.
void leave_socket_file(const std::string& path) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un where{};
  where.sun_family = AF_UNIX;
  std::strncpy(where.sun_path, path.c_str(), sizeof where.sun_path - 1);
  EXPECT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&where), sizeof where), 0);
  ::close(socket);
}

class SameHostTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string why;
    if (!test::shm_supported(&why)) GTEST_SKIP() << why;
  }

  std::unique_ptr<Agent> serve(const std::string& listen, AgentOptions options = {}) {
    options.name = "server";
    options.listen = {listen};
    auto agent = std::make_unique<Agent>(std::move(options));
    agent->serve<WhichWay>();
    return agent;
  }
  // "shm", "tcp" or "unix".
  std::string way_to(const std::string& where, AgentOptions options = {}) {
    options.name = "client";
    Agent client(std::move(options));
    const std::string described = got(client.connect(where).call<WhichWay>());
    return described.substr(0, described.find(' '));
  }
};

TEST_F(SameHostTest, ATcpAddressOfThisHostIsReachedThroughSharedMemory) {
  const auto server = serve("tcp://127.0.0.1:0");
  ASSERT_EQ(server->addresses().size(), 1U) << "companions are nobody's business";
  EXPECT_EQ(way_to(server->addresses().front()), "shm");
  const auto port = Address::parse(server->addresses().front()).port;
  EXPECT_EQ(way_to("tcp://localhost:" + port), "shm");
}

TEST_F(SameHostTest, AnyPathOfAUnixSocketIsReachedThroughSharedMemory) {
  const auto folder =
      std::filesystem::temp_directory_path() / ("weft-same-host-" + std::to_string(::getpid()));
  std::filesystem::create_directory(folder);
  const auto path = folder / "socket";
  {
    const auto server = serve("unix://" + path.string());
    EXPECT_EQ(way_to("unix://" + path.string()), "shm");
    std::filesystem::create_symlink(path, folder / "link");
    EXPECT_EQ(way_to("unix://" + (folder / "link").string()), "shm");
  }
  std::filesystem::remove_all(folder);
}

TEST_F(SameHostTest, EitherSideMayDisableSharedMemory) {
  const auto server = serve("tcp://127.0.0.1:0");
  EXPECT_EQ(way_to(server->addresses().front(), {.same_host = false}), "tcp");
  const auto plain = serve("tcp://127.0.0.1:0", {.same_host = false});
  EXPECT_EQ(way_to(plain->addresses().front()), "tcp");
}

TEST_F(SameHostTest, CredentialsProveMoreThanTheKernel) {
  test::TestAuthority authority;
  const auto server = serve("tcp://127.0.0.1:0",
                            {.credentials = std::make_shared<Credentials>(authority.credentials("server"))});
  EXPECT_EQ(way_to(server->addresses().front(),
                   {.credentials = std::make_shared<Credentials>(authority.credentials("client"))}),
            "tls");
}

TEST_F(SameHostTest, TheSocketFileOfADeadProcessIsIgnored) {
  const auto server = serve("tcp://127.0.0.1:0", {.same_host = false});
  const auto companion = companion_of(Address::parse(server->addresses().front()));
  ASSERT_TRUE(companion);
  ::unlink(companion->path.c_str());  // an earlier process with this port may have left one
  leave_socket_file(companion->path);
  ASSERT_EQ(companions_towards(Address::parse(server->addresses().front())).size(), 1U);
  EXPECT_EQ(way_to(server->addresses().front()), "tcp");
  ::unlink(companion->path.c_str());
}

TEST_F(SameHostTest, SocketFilesOfDeadProcessesAreRemoved) {
  const auto server = serve("tcp://127.0.0.1:0");
  const auto companion = companion_of(Address::parse(server->addresses().front()));
  ASSERT_TRUE(companion);
  const std::filesystem::path folder = std::filesystem::path(companion->path).parent_path();
  const auto bound = [&](const std::string& name, std::time_t age) {
    const auto path = folder / (name + std::to_string(::getpid()));
    leave_socket_file(path);
    const timespec time{std::time(nullptr) - age, 0}, times[2] = {time, time};
    EXPECT_EQ(::utimensat(AT_FDCWD, path.c_str(), times, 0), 0);
    return path;
  };
  const auto old = bound("old-", 3600), young = bound("young-", 0);
  const timespec long_ago{std::time(nullptr) - 3600, 0}, times[2] = {long_ago, long_ago};
  ASSERT_EQ(::utimensat(AT_FDCWD, companion->path.c_str(), times, 0), 0);
  // Agents that start soon after another agent has removed old files do not search again.
  const std::string mark = (folder / ".swept").string();
  ASSERT_EQ(::utimensat(AT_FDCWD, mark.c_str(), nullptr, 0), 0);
  EXPECT_TRUE(companion_of(Address::parse(server->addresses().front())));
  EXPECT_TRUE(std::filesystem::exists(old));
  ASSERT_EQ(::utimensat(AT_FDCWD, mark.c_str(), times, 0), 0);
  EXPECT_TRUE(companion_of(Address::parse(server->addresses().front())));
  test::eventually("it is swept away", [&] { return !std::filesystem::exists(old); });
  EXPECT_TRUE(std::filesystem::exists(young)) << "it may be about to listen";
  EXPECT_TRUE(std::filesystem::exists(companion->path)) << "somebody answers";
  std::filesystem::remove(young);
}

TEST_F(SameHostTest, AnAgentRemovesItsCompanionWhenItEnds) {
  auto server = serve("tcp://127.0.0.1:0");
  const auto where = Address::parse(server->addresses().front());
  EXPECT_EQ(companions_towards(where).size(), 1U);
  server.reset();
  EXPECT_TRUE(companions_towards(where).empty());
}

TEST_F(SameHostTest, AnAgentThatListensOnAllInterfacesIsFound) {
  const auto server = serve("tcp://0.0.0.0:0", {.insecure = true});
  const auto port = Address::parse(server->addresses().front()).port;
  EXPECT_EQ(way_to("tcp://127.0.0.1:" + port), "shm");
}

TEST_F(SameHostTest, BeyondTheLimitOfTheListenerTheAddressItselfIsUsed) {
  const auto server = serve("tcp://127.0.0.1:0", {.max_shared = 2});
  const std::string where = server->addresses().front();
  const auto way = [&](Agent& client) {
    const std::string described = got(client.connect(where).call<WhichWay>());
    return described.substr(0, described.find(' '));
  };
  std::vector<std::unique_ptr<Agent>> clients;
  for (int i = 0; i < 6; ++i) {
    clients.push_back(std::make_unique<Agent>(AgentOptions{.name = "client" + std::to_string(i)}));
    EXPECT_EQ(way(*clients.back()), i < 2 ? "shm" : "tcp") << i;
  }
  for (auto& client : clients) EXPECT_NO_THROW(way(*client)) << "all go on";
  EXPECT_EQ(server->counts().connections, 6U);
  EXPECT_EQ(server->counts().connections_refused, 0U);
  // A free place is used again.
  clients.erase(clients.begin());
  test::eventually("its end is noticed", [&] { return server->counts().connections == 5; });
  test::eventually("the next one comes through shared memory", [&] { return way_to(where) == "shm"; });
}

TEST_F(SameHostTest, BeyondTheLimitOfTheCallerTheAddressItselfIsUsed) {
  const auto server = serve("tcp://127.0.0.1:0"), other = serve("tcp://127.0.0.1:0");
  EXPECT_EQ(way_to(server->addresses().front(), {.max_shared = 0}), "tcp");
  Agent client({.name = "client", .max_shared = 1});
  EXPECT_EQ(got(client.connect(server->addresses().front()).call<WhichWay>()).substr(0, 3), "shm");
  EXPECT_EQ(got(client.connect(other->addresses().front()).call<WhichWay>()).substr(0, 3), "tcp");
}

TEST_F(SameHostTest, AnShmAddressBeyondTheLimitFails) {
  const std::string path = "/tmp/weft-shared-" + std::to_string(::getpid());
  const auto server = serve("shm://" + path);
  EXPECT_EQ(way_to("shm://" + path), "shm");
  expect_error([&] { return way_to("shm://" + path, {.max_shared = 0}); }, ErrorKind::resource_exhausted,
               Execution::not_sent);
}

TEST_F(SameHostTest, OtherHostsHaveNoCompanions) {
  EXPECT_TRUE(companions_towards(Address::parse("tcp://192.0.2.1:4000")).empty());
  EXPECT_TRUE(companions_towards(Address::parse("tcp://example.invalid:4000")).empty());
  EXPECT_TRUE(companions_towards(Address::parse("inproc://here")).empty());
  EXPECT_FALSE(companion_of(Address::parse("inproc://here")));
}

}  // namespace
}  // namespace weft::rpc::same_host_test

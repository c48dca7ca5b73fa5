// Replies that no healthy etcd sends, and the store's errors for them.
// tests/rpc/job/store/etcd_store_process_test.cc runs the store suite against etcd itself.
#include <weft/rpc/job/store/etcd_store.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/support/cluster.h"
#include "tests/support/scripted_http_server.h"

namespace weft::rpc::etcd_store_test {
namespace {

using namespace std::chrono_literals;
using Server = test::ScriptedHttpServer;

class EtcdStoreTest : public testing::Test {
 protected:
  ~EtcdStoreTest() override {
    stores_.clear();
    loop_->stop();
  }
  EtcdStore& store(const std::vector<std::string>& servers, std::chrono::nanoseconds timeout = 20s) {
    stores_.push_back(std::make_unique<EtcdStore>(
        loop_, EtcdStoreOptions{.servers = servers, .prefix = "weft/", .timeout = timeout}));
    return *stores_.back();
  }
  template <class T>
  static Error failure(Future<T> future) {
    const auto error = test::error_of([&] { return test::got(std::move(future)), 0; });
    EXPECT_TRUE(error) << "no error";
    return error.value_or(Error(ErrorKind::internal, "none"));
  }

  std::shared_ptr<AsioLoop> loop_ = std::make_shared<AsioLoop>();
  std::vector<std::unique_ptr<EtcdStore>> stores_;
};

std::string at(int revision) { return R"({"header":{"revision":")" + std::to_string(revision) + "\"}"; }
// "a" and "b", base64 of "weft/a" and "weft/b".
std::string entry(const char* key, int revision) {
  return std::string(R"({"key":")") + (*key == 'a' ? "d2VmdC9h" : "d2VmdC9i") +
         R"(","value":"eA==","mod_revision":")" + std::to_string(revision) + "\"}";
}
std::string line(const std::string& result) { return Server::chunk("{\"result\":" + result + "}\n"); }

// Whether a connection of this host to that port has TCP's keep-alive (the timer 02 in /proc/net/tcp).
bool keeps_alive(const std::string& port) {
  char remote[16];
  std::snprintf(remote, sizeof remote, "0100007F:%04X", static_cast<unsigned>(std::stoul(port)));
  std::ifstream sockets("/proc/self/net/tcp");
  for (std::string line; std::getline(sockets, line);) {
    std::istringstream words(line);
    std::string number, local, to, state, queues, timer;
    words >> number >> local >> to >> state >> queues >> timer;
    if (to == remote && timer.starts_with("02:")) return true;
  }
  return false;
}

TEST_F(EtcdStoreTest, ParsesItsUrl) {
  const auto options = EtcdStore::options_of("etcd://a:1,10.0.0.1,[::1]:7,[::2]/jobs/42");
  EXPECT_EQ(options.servers, (std::vector<std::string>{"a:1", "10.0.0.1:2379", "[::1]:7", "[::2]:2379"}));
  EXPECT_EQ(options.prefix, "jobs/42/");
  EXPECT_EQ(EtcdStore::options_of("etcd://a").prefix, "weft/");
  EXPECT_EQ(EtcdStore::options_of("etcd://a/b/").prefix, "b/");
  for (const char* url : {"etcd://", "etcd://a:x", "etcd://a,,b", "etcd://a,", "tcp://a:1", "etcd:///b",
                          "etcd://a/", "etcd://::1", "a:1", "http://a:1"})
    EXPECT_EQ(test::kind_of([&] { return EtcdStore::options_of(url); }), ErrorKind::invalid_argument) << url;
  EXPECT_THROW(store({}), Error);
  EXPECT_THROW(store({"nowhere"}), Error);
}

TEST_F(EtcdStoreTest, RepliesOfOtherServersAreRefused) {
  for (const std::string& body :
       {std::string("<html>"), std::string("[]"), std::string("{}"), std::string(R"({"header":{}})"),
        std::string(R"({"header":{"revision":"x"}})"), std::string(R"({"header":{"revision":{}}})"),
        std::string(R"({"header":[]})"), at(1) + R"(,"kvs":[{"key":"%%%"}]})",
        at(1) + R"(,"kvs":[{"key":7}]})", std::string(R"({"error":{}})"), std::string(100'000, '[')}) {
    Server server([&](const Server::Request&) { return Server::Answer{Server::ok(body)}; });
    const Error error = failure(store({server.server()}).try_get("a"));
    EXPECT_EQ(error.kind(), ErrorKind::protocol_error) << body.substr(0, 100) << error.what();
    EXPECT_EQ(std::string(error.what()).find("etcd at " + server.server() + ": "), 0U) << error.what();
  }
  Server other([](const Server::Request&) { return Server::Answer{Server::status(404, "no such page")}; });
  EXPECT_EQ(failure(store({other.server()}).set("a", "x")).kind(), ErrorKind::protocol_error);
  EXPECT_EQ(failure(store({other.server()}).get("a")).kind(), ErrorKind::protocol_error);
  Server ssh([](const Server::Request&) { return Server::Answer{"SSH-2.0-OpenSSH\r\n"}; });
  EXPECT_EQ(failure(store({ssh.server()}, 100ms).set("a", "x")).kind(), ErrorKind::unavailable);
}

TEST_F(EtcdStoreTest, AFailureKeepsItsKind) {
  const std::pair<int, ErrorKind> codes[] = {
      {3, ErrorKind::invalid_argument},   {5, ErrorKind::lease_lost},   {7, ErrorKind::permission_denied},
      {8, ErrorKind::resource_exhausted}, {12, ErrorKind::unsupported}, {14, ErrorKind::unavailable},
      {16, ErrorKind::permission_denied}};
  for (const auto& [code, kind] : codes) {
    Server server([code = code](const Server::Request&) {
      return Server::Answer{
          Server::status(400, R"({"error":"why","message":"why","code":)" + std::to_string(code) + "}")};
    });
    const Error error = failure(store({server.server()}).compare_set("a", std::nullopt, "x"));
    EXPECT_EQ(error.kind(), kind) << code;
    EXPECT_EQ(error.execution(),
              kind == ErrorKind::unavailable ? Execution::maybe_executed : Execution::not_sent);
    EXPECT_EQ(std::string(error.what()), "etcd at " + server.server() + ": why");
  }
}

TEST_F(EtcdStoreTest, ReadsAndSetsAreRetriedIfAServerHasNoLeader) {
  std::atomic<int> asked = 0;
  Server server([&](const Server::Request&) {
    if (++asked <= 3)
      return Server::Answer{Server::status(503, R"({"error":"etcdserver: no leader","code":14})")};
    return Server::Answer{Server::ok(at(7) + "}")};
  });
  EXPECT_EQ(store({server.server()}).list("").get().version, 7U);
  EXPECT_EQ(asked, 4);
  asked = 0;
  test::got(store({server.server()}).set("a", "x"));
  EXPECT_EQ(asked, 4);
}

TEST_F(EtcdStoreTest, ASilentServerTimesOut) {
  Server silent([](const Server::Request&) { return Server::Answer{}; });
  EtcdStore& patient = store({silent.server()}, 100ms);
  for (const Error& error :
       {failure(patient.set("a", "x")), failure(patient.get("a")), failure(patient.watch("a", 0)),
        failure(patient.wait({"a"})), failure(patient.add("a", 1)), failure(patient.grant(1s))})
    EXPECT_EQ(error.kind(), ErrorKind::unavailable) << error.what();
  EXPECT_EQ(failure(store({silent.server()}).get("a", {.timeout = 20ms})).kind(),
            ErrorKind::deadline_exceeded);
}

// The watch is silent although its server accepts connections. The store detects this by a request to the
// server.
TEST_F(EtcdStoreTest, AWatchMovesToAnotherServerIfItsServerBecomesSilent) {
  std::atomic<bool> silent = false;
  const auto healthy = [](const Server::Request& request) {
    if (request.target != "/v3/watch") return Server::Answer{Server::ok(at(5) + "}")};
    return Server::Answer{Server::chunked + line(at(5) + R"(,"created":true})")};
  };
  std::atomic<bool> watched = false;
  Server first([&](const Server::Request& request) {
    if (silent) return Server::Answer{};
    if (request.target == "/v3/watch") watched = true;  // the watch is opened and answered before
    return healthy(request);
  });
  std::atomic<int> opened = 0;
  std::string asked;
  Server second([&](const Server::Request& request) {
    if (request.target == "/v3/watch") asked = request.body, ++opened;
    return healthy(request);
  });
  EtcdStore& both = store({first.server(), second.server()}, 3s);
  auto change = both.watch("", 5);
  test::eventually("the watch is open", [&] { return watched.load(); });
  silent = true;
  test::eventually("it is open again", [&] { return opened == 1; });
  EXPECT_NE(asked.find(R"("start_revision":"6")"), std::string::npos) << asked;
  second.send(line(at(9) + R"(,"events":[{"kv":)" + entry("a", 8) + R"(},{"type":"DELETE","kv":)" +
                   entry("b", 9) + "}]}"));
  const StoreChanges changes = test::got(std::move(change));
  EXPECT_EQ(changes.version, 8U);  // each revision was reported separately
  EXPECT_EQ(changes.entries, (std::map<std::string, std::optional<std::string>>{{"a", "x"}}));
  const StoreChanges next = test::got(both.watch("", 8));
  EXPECT_EQ(next.version, 9U);
  EXPECT_EQ(next.entries, (std::map<std::string, std::optional<std::string>>{{"b", std::nullopt}}));
}

// A NAT drops the connection of the watch without telling either end, while the server answers on others.
TEST_F(EtcdStoreTest, AWatchThatIsSilentForLongIsReopened) {
  std::atomic<int> opened = 0;
  Server server([&](const Server::Request& request) {
    if (request.target != "/v3/watch") return Server::Answer{Server::ok(at(5) + "}")};
    const std::string created = Server::chunked + line(at(5) + R"(,"created":true})");
    if (++opened == 1) return Server::Answer{created};
    EXPECT_NE(request.body.find(R"("start_revision":"6")"), std::string::npos) << request.body;
    return Server::Answer{created + line(at(8) + R"(,"events":[{"kv":)" + entry("a", 8) + "}]}")};
  });
  auto change = store({server.server()}, 600ms).watch("", 5);
  test::eventually("the watch is open", [&] { return opened == 1; });
  EXPECT_TRUE(keeps_alive(server.port()));
  const StoreChanges changes = test::got(std::move(change));
  EXPECT_EQ(changes.version, 8U);
  EXPECT_EQ(changes.entries, (std::map<std::string, std::optional<std::string>>{{"a", "x"}}));
  EXPECT_EQ(opened, 2);
}

TEST_F(EtcdStoreTest, AWatchReadsAllKeysAfterACompaction) {
  std::atomic<int> opened = 0;
  std::atomic<int> revision = 5;
  Server server([&](const Server::Request& request) {
    if (request.target == "/v3/watch") {
      if (++opened == 2) {
        EXPECT_NE(request.body.find(R"("start_revision":"6")"), std::string::npos) << request.body;
        return Server::Answer{Server::chunked + line(at(50) + R"(,"created":true})") +
                              line(at(50) + R"(,"canceled":true,"compact_revision":"40"})")};
      }
      return Server::Answer{Server::chunked + line(at(revision) + R"(,"created":true})")};
    }
    return Server::Answer{Server::ok(at(revision) + R"(,"kvs":[)" + entry("a", revision) + "]}")};
  });
  EtcdStore& etcd = store({server.server()});
  auto change = etcd.watch("", 5);
  test::eventually("the watch is open", [&] { return opened == 1; });
  EXPECT_EQ(etcd.try_get("a").get(), "x");  // sent after the watch, because both use the same loop
  revision = 50;
  server.close_connections();
  const StoreChanges changes = test::got(std::move(change));
  EXPECT_TRUE(changes.whole);
  EXPECT_EQ(changes.version, 50U);
  EXPECT_EQ(changes.entries, (std::map<std::string, std::optional<std::string>>{{"a", "x"}}));
  EXPECT_EQ(opened, 3);
}

TEST_F(EtcdStoreTest, ARefusedWatchFailsItsWaiters) {
  Server server([](const Server::Request& request) {
    if (request.target == "/v3/watch")
      return Server::Answer{Server::ok(R"({"error":{"grpc_code":7,"message":"permission denied"}})"
                                       "\n")};
    return Server::Answer{Server::ok(at(5) + "}")};
  });
  EXPECT_EQ(failure(store({server.server()}).get("a")).kind(), ErrorKind::permission_denied);
  Server nonsense([](const Server::Request& request) {
    if (request.target == "/v3/watch") return Server::Answer{Server::chunked + Server::chunk("what?\n")};
    return Server::Answer{Server::ok(at(5) + "}")};
  });
  EXPECT_EQ(failure(store({nonsense.server()}).get("a")).kind(), ErrorKind::protocol_error);
}

TEST_F(EtcdStoreTest, CloseEndsRequestsInFlight) {
  Server server([](const Server::Request& request) {
    if (request.target == "/v3/watch")
      return Server::Answer{Server::chunked + line(at(5) + R"(,"created":true})")};
    return request.target == "/v3/kv/put" ? Server::Answer{} : Server::Answer{Server::ok(at(5) + "}")};
  });
  EtcdStore& etcd = store({server.server()});
  auto set = etcd.set("a", "x");
  auto get = etcd.get("a");
  auto watch = etcd.watch("a", 5);
  etcd.close();
  EXPECT_EQ(failure(std::move(set)).kind(), ErrorKind::shut_down);
  EXPECT_EQ(failure(std::move(get)).kind(), ErrorKind::shut_down);
  EXPECT_EQ(failure(std::move(watch)).kind(), ErrorKind::shut_down);
  EXPECT_EQ(failure(etcd.try_get("a")).kind(), ErrorKind::shut_down);
}

}  // namespace
}  // namespace weft::rpc::etcd_store_test

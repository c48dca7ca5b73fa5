#include <weft/rpc/job/store/internal/http_client.h>

#include <asio/ip/tcp.hpp>

#include "tests/support/cluster.h"
#include "tests/support/scripted_http_server.h"

namespace weft::rpc::detail::http_client_test {
namespace {

using namespace std::chrono_literals;
using test::Handover;
using Server = test::ScriptedHttpServer;

// A port that is bound, but has no listener: connections are refused.
struct ClosedPort {
  ClosedPort() {
    acceptor.open(asio::ip::tcp::v4());
    acceptor.bind({asio::ip::address_v4::loopback(), 0});
  }
  std::string port() const { return std::to_string(acceptor.local_endpoint().port()); }

  asio::io_context context;
  asio::ip::tcp::acceptor acceptor{context};
};

class HttpClientTest : public testing::Test {
 protected:
  template <class F>
  auto on_loop(F f) {
    Handover<decltype(f())> result;
    loop_->post([&] { result.give(f()); });
    return result.take();
  }
  ~HttpClientTest() override {
    if (client_ != nullptr) on_loop([&] { return client_->close(), 0; });
    loop_->stop();
  }
  void connect_to(const std::vector<std::string>& ports, HttpClientOptions options = {}) {
    std::vector<HttpAddress> servers;
    for (const std::string& port : ports) servers.push_back({"127.0.0.1", port});
    if (client_ != nullptr) on_loop([&] { return client_->close(), 0; });
    client_ = std::make_shared<HttpClient>(loop_, servers, options);
  }
  HttpRequest request(std::chrono::nanoseconds time = 30s, bool repeatable = false) {
    return {"/target", "body", loop_->now() + time, 0ns, repeatable, {}};
  }
  using Pending = std::shared_ptr<Handover<Result<HttpResponse>>>;
  Pending begin(HttpRequest request) {
    auto result = std::make_shared<Handover<Result<HttpResponse>>>();
    on_loop([&] {
      client_->post(std::move(request), [result](Result<HttpResponse>&& r) { result->give(std::move(r)); });
      return 0;
    });
    return result;
  }
  HttpResponse post(HttpRequest request) { return begin(std::move(request))->take().get(); }
  Error failure(HttpRequest request) {
    const auto error = test::error_of([&] { return post(std::move(request)); });
    EXPECT_TRUE(error);
    return error.value_or(Error(ErrorKind::internal, "none"));
  }

  std::shared_ptr<AsioLoop> loop_ = std::make_shared<AsioLoop>();
  std::shared_ptr<HttpClient> client_;
};

TEST_F(HttpClientTest, KeepsAConnectionForTheNextRequest) {
  Server server([](const Server::Request& r) { return Server::Answer{Server::ok(r.target + " " + r.body)}; });
  connect_to({server.port()});
  for (int i = 0; i < 5; ++i) {
    const HttpResponse response = post(request());
    EXPECT_EQ(response.status, 200U);
    EXPECT_EQ(response.body, "/target body");
  }
  EXPECT_EQ(server.connections(), 1);
  server.close_connections();
  EXPECT_EQ(post(request(30s, true)).status, 200U);
  EXPECT_EQ(server.connections(), 2);
}

TEST_F(HttpClientTest, UsesTheNextServerIfOneCannotBeReached) {
  Server server([](const Server::Request&) { return Server::Answer{Server::ok("")}; });
  const ClosedPort a, b;
  connect_to({a.port(), b.port(), server.port()});
  EXPECT_EQ(post(request()).status, 200U);  // the request is not repeatable, but it was not sent before
  EXPECT_EQ(post(request()).status, 200U);
  EXPECT_EQ(server.connections(), 1);
}

TEST_F(HttpClientTest, ReportsTheOutcomeOfEachServer) {
  const ClosedPort first, second;
  const std::string a = first.port(), b = second.port();
  connect_to({a, b});
  const Error error = failure(request(1s));
  EXPECT_EQ(error.kind(), ErrorKind::unavailable);
  EXPECT_EQ(error.execution(), Execution::not_sent);
  EXPECT_EQ(std::string(error.what()).substr(0, std::string("not reached: 127.0.0.1:" + a).size()),
            "not reached: 127.0.0.1:" + a);
  EXPECT_NE(std::string(error.what()).find("127.0.0.1:" + b + " (Connection refused)"), std::string::npos)
      << error.what();
}

TEST_F(HttpClientTest, TriesAgainUntilAServerListens) {
  ClosedPort closed;
  connect_to({closed.port()});
  const auto pending = begin(request());
  EXPECT_FALSE(pending->given());
  closed.acceptor.listen();
  auto socket = closed.acceptor.accept();
  std::string bytes;
  asio::read_until(socket, asio::dynamic_buffer(bytes), "body");
  asio::write(socket, asio::buffer(Server::ok("at last")));
  EXPECT_EQ(pending->take().get().body, "at last");
}

TEST_F(HttpClientTest, ARequestThatMayHaveBeenExecutedIsRepeatedOnlyIfItIsRepeatable) {
  std::atomic<int> asked = 0;
  const auto hang_up = [&](const Server::Request&) {
    return ++asked, Server::Answer{"HTTP/1.1 200 O", true};
  };
  Server first(hang_up);
  Server second([](const Server::Request&) { return Server::Answer{Server::ok("")}; });
  connect_to({first.port(), second.port()});
  const Error error = failure(request());
  EXPECT_EQ(error.kind(), ErrorKind::unavailable);
  EXPECT_EQ(error.execution(), Execution::maybe_executed);
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(post(request()).status, 200U);  // the next one goes elsewhere
  connect_to({first.port(), second.port()});
  EXPECT_EQ(post(request(30s, true)).status, 200U);
  EXPECT_EQ(asked, 2);
}

// libcurl by itself repeats a request if a kept connection is closed without a reply.
TEST_F(HttpClientTest, RepeatsARequestOnAKeptConnectionOnlyIfItIsRepeatable) {
  std::atomic<int> asked = 0;
  Server server([&](const Server::Request&) {
    return ++asked == 2 ? Server::Answer{"", true} : Server::Answer{Server::ok("")};
  });
  connect_to({server.port()});
  EXPECT_EQ(post(request()).status, 200U);
  const Error error = failure(request());
  EXPECT_EQ(error.kind(), ErrorKind::unavailable);
  EXPECT_EQ(error.execution(), Execution::maybe_executed);
  EXPECT_EQ(asked, 2);
  asked = 0;
  connect_to({server.port()});
  EXPECT_EQ(post(request()).status, 200U);
  EXPECT_EQ(post(request(30s, true)).status, 200U);
  EXPECT_EQ(asked, 3);
}

TEST_F(HttpClientTest, ClosesTheIdleConnectionsToAFailedServer) {
  std::atomic<int> asked = 0;
  Server server([&](const Server::Request& r) {
    return ++asked < 4 ? Server::Answer{} : Server::Answer{Server::ok(std::to_string(r.connection))};
  });
  connect_to({server.port()});
  const auto first = begin(request()), second = begin(request());
  test::eventually("two were asked", [&] { return asked == 2; });
  server.send(Server::ok(""));
  EXPECT_EQ(first->take().get().status, 200U);
  EXPECT_EQ(second->take().get().status, 200U);
  EXPECT_EQ(failure(request(1s)).kind(), ErrorKind::unavailable);
  EXPECT_EQ(post(request()).body, "3");
}

TEST_F(HttpClientTest, ABrokenResponseIsAFailure) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  for (const std::string& bytes :
       {std::string(), std::string("SSH-2.0-OpenSSH\r\n"), ok + "Content-Length: 5\r\n\r\nhell",
        ok + "Content-Length: -1\r\n\r\n", ok + "X: " + std::string(1'000'000, 'x'),
        Server::chunked + std::string("5\r\nhello\r\n"), Server::chunked + std::string("x\r\n")}) {
    Server server([&](const Server::Request&) { return Server::Answer{bytes, true}; });
    connect_to({server.port()});
    const Error error = failure(request());
    EXPECT_EQ(error.kind(), ErrorKind::unavailable) << bytes.substr(0, 100);
    EXPECT_EQ(error.execution(), Execution::maybe_executed) << bytes.substr(0, 100);
  }
}

TEST_F(HttpClientTest, IgnoresTheEnvironmentsProxy) {
  Server server([](const Server::Request&) { return Server::Answer{Server::ok("")}; });
  connect_to({server.port()});
  const ClosedPort proxy;
  setenv("http_proxy", ("http://127.0.0.1:" + proxy.port()).c_str(), 1);
  const auto response = begin(request(1s))->take();
  unsetenv("http_proxy");
  EXPECT_TRUE(response.ok());
}

TEST_F(HttpClientTest, ASilentServerTimesOut) {
  Server silent([](const Server::Request&) { return Server::Answer{}; });
  Server server([](const Server::Request&) { return Server::Answer{Server::ok("")}; });
  connect_to({silent.port()});
  const Error error = failure(request(1s, true));
  EXPECT_EQ(error.kind(), ErrorKind::unavailable);
  EXPECT_EQ(error.execution(), Execution::maybe_executed);
  EXPECT_STREQ(error.what(), ("not reached: " + silent.server() + " (no answer)").c_str());
  // The last attempt is not sent. The one before it was.
  const ClosedPort closed;
  connect_to({silent.port(), closed.port()});
  HttpRequest hurried = request(90ms, true);
  hurried.attempt = 50ms;
  EXPECT_EQ(failure(hurried).execution(), Execution::maybe_executed);
  connect_to({silent.port(), server.port()});
  HttpRequest ask = request(30s, true);
  ask.attempt = 50ms;
  EXPECT_EQ(post(ask).status, 200U);
  ask.server = 0;  // use only this server
  EXPECT_EQ(failure(ask).kind(), ErrorKind::unavailable);
}

TEST_F(HttpClientTest, LimitsTheNumberOfConnections) {
  std::atomic<int> asked = 0;
  Server server([&](const Server::Request&) { return ++asked, Server::Answer{}; });
  connect_to({server.port()}, {.connections = 2});
  std::vector<Pending> pending;
  for (int i = 0; i < 6; ++i) pending.push_back(begin(request()));
  test::eventually("two were asked", [&] { return asked == 2; });
  server.send(Server::ok("a"));
  test::eventually("four were asked", [&] { return asked == 4; });
  EXPECT_EQ(server.connections(), 2);
  // A request that waits too long for a free connection fails.
  const Error error = failure(request(20ms));
  EXPECT_STREQ(error.what(), "not reached: all connections were busy");
  server.send(Server::ok("b"));
  test::eventually("all were asked", [&] { return asked == 6; });
  server.send(Server::ok("c"));
  for (const auto& one : pending) EXPECT_EQ(one->take().get().status, 200U);
}

TEST_F(HttpClientTest, LimitsTheSizeOfAResponse) {
  const std::string body(101, 'x');
  for (const std::string& bytes : {Server::ok(body), Server::chunked + Server::chunk(body) + "0\r\n\r\n"}) {
    Server server([&](const Server::Request&) { return Server::Answer{bytes}; });
    connect_to({server.port()}, {.max_body = 100});
    EXPECT_EQ(failure(request()).kind(), ErrorKind::resource_exhausted);
    connect_to({server.port()}, {.max_body = 101});
    EXPECT_EQ(post(request()).body, body);
  }
  // The client does not allocate memory for the size that the server states.
  Server boaster([](const Server::Request&) {
    return Server::Answer{"HTTP/1.1 200 OK\r\nContent-Length: 18446744073709551615\r\n\r\nx"};
  });
  connect_to({boaster.port()}, {.max_body = 100});
  EXPECT_EQ(failure(request(50ms)).kind(), ErrorKind::unavailable);
}

TEST_F(HttpClientTest, UnrequestedBytesCloseTheConnection) {
  Server server([](const Server::Request&) { return Server::Answer{Server::ok("a") + Server::ok("b")}; });
  connect_to({server.port()});
  EXPECT_EQ(post(request()).body, "a");
  EXPECT_EQ(post(request()).body, "a");
  EXPECT_EQ(server.connections(), 2);
}

TEST_F(HttpClientTest, AStreamContinuesUntilItEndsOrIsStopped) {
  Server server([](const Server::Request&) {
    return Server::Answer{Server::chunked + Server::chunk("one ") + Server::chunk("two ")};
  });
  connect_to({server.port()});
  auto parts = std::make_shared<Handover<std::string>>();
  auto ended = std::make_shared<Handover<Result<HttpResponse>>>();
  const auto open = [&] {
    return on_loop([&] {
      return client_->stream(
          request(),
          [parts, all = std::string()](std::string_view part) mutable {
            all += part;
            parts->give(all);
          },
          [ended](Result<HttpResponse>&& result) { ended->give(std::move(result)); });
    });
  };
  const auto await = [&](const std::string& text) {
    while (parts->take() != text) {
    }
  };
  open();
  await("one two ");
  server.send(Server::chunk("three"));
  await("one two three");
  EXPECT_FALSE(ended->given());
  server.send("0\r\n\r\n");
  EXPECT_EQ(ended->take().get().status, 200U);
  open();
  await("one two ");
  server.close_connections();
  EXPECT_EQ(test::kind_of([&] { return ended->take().get(); }), ErrorKind::unavailable);
  const auto id = open();
  await("one two ");
  on_loop([&] { return client_->stop(id), 0; });
  server.close_connections();
  on_loop([] { return 0; });
  EXPECT_FALSE(ended->given());
}

TEST_F(HttpClientTest, TheLastPartPrecedesTheEnd) {
  Server server([](const Server::Request&) { return Server::Answer{Server::ok("all")}; });
  connect_to({server.port()});
  Handover<Result<HttpResponse>> ended;
  std::string all;
  on_loop([&] {
    return client_->stream(
        request(), [&](std::string_view part) { all += part; },
        [&](Result<HttpResponse>&& result) { ended.give(std::move(result)); });
  });
  EXPECT_EQ(ended.take().get().status, 200U);
  EXPECT_EQ(all, "all");
}

TEST_F(HttpClientTest, APartMayCloseItsStream) {
  Server server(
      [](const Server::Request&) { return Server::Answer{Server::chunked + Server::chunk("one")}; });
  connect_to({server.port()});
  auto ended = std::make_shared<Handover<Result<HttpResponse>>>();
  const auto open = [&](HttpClient::Part part) {
    on_loop([&] {
      return client_->stream(request(), std::move(part),
                             [ended](Result<HttpResponse>&& result) { ended->give(std::move(result)); });
    });
  };
  open([](std::string_view) { throw Error(ErrorKind::type_mismatch, "no"); });
  EXPECT_EQ(test::kind_of([&] { return ended->take().get(); }), ErrorKind::type_mismatch);
  auto stopped = std::make_shared<test::Event>();
  open([this, stopped](std::string_view) {
    client_->stop(2);
    stopped->set();
  });
  stopped->wait();
  server.close_connections();
  on_loop([] { return 0; });
  EXPECT_FALSE(ended->given());
}

TEST_F(HttpClientTest, ARefusedStreamEndsWithTheResponse) {
  Server server([](const Server::Request&) { return Server::Answer{Server::status(404, "not here")}; });
  connect_to({server.port()});
  auto ended = std::make_shared<Handover<Result<HttpResponse>>>();
  on_loop([&] {
    return client_->stream(
        request(), [](std::string_view) { ADD_FAILURE() << "a part"; },
        [ended](Result<HttpResponse>&& result) { ended->give(std::move(result)); });
  });
  const HttpResponse response = ended->take().get();
  EXPECT_EQ(response.status, 404U);
  EXPECT_EQ(response.body, "not here");
}

TEST_F(HttpClientTest, CloseFailsCallsInFlight) {
  Server silent([](const Server::Request&) { return Server::Answer{}; });
  connect_to({silent.port()}, {.connections = 1});
  const auto first = begin(request()), second = begin(request());
  on_loop([&] { return client_->close(), 0; });
  EXPECT_EQ(test::kind_of([&] { return first->take().get(); }), ErrorKind::shut_down);
  EXPECT_EQ(test::kind_of([&] { return second->take().get(); }), ErrorKind::shut_down);
  EXPECT_EQ(failure(request()).kind(), ErrorKind::shut_down);
}

}  // namespace
}  // namespace weft::rpc::detail::http_client_test

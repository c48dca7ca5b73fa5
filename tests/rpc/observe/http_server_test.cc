#include <weft/rpc/observe/http_server.h>

#include <weft/rpc/core/error.h>

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <thread>
#include <vector>

#include "tests/rpc/observe/http_support.h"
#include "tests/support/errors.h"

namespace weft::observe::http_server_test {
namespace {

using test::Answer;
using test::asked;
using test::get;
using test::HttpClient;
using weft::test::kind_of;

class HttpServerTest : public testing::Test {
 protected:
  HttpServer server{"127.0.0.1:0",
                    {{"/page", [] { return HttpReply{200, "text/html", "<p>hello</p>"}; }},
                     {"/no", [] { return HttpReply{503, {}, "not now\n"}; }},
                     {"/large", [] { return HttpReply{200, {}, std::string(4 << 20, 'x')}; }},
                     {"/throws", []() -> HttpReply { throw std::runtime_error("broken"); }}}};
  Answer ask(const std::string& request) { return asked(server.address(), request); }
};

TEST_F(HttpServerTest, AnswersAGet) {
  const Answer answer = get(server.address(), "/page");
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "<p>hello</p>");
  EXPECT_NE(answer.head.find("\r\nContent-Type: text/html\r\n"), std::string::npos);
  EXPECT_NE(answer.head.find("\r\nContent-Length: 12\r\n"), std::string::npos);
  EXPECT_NE(answer.head.find("\r\nConnection: close\r\n"), std::string::npos);
}

TEST_F(HttpServerTest, ReturnsTheStatusOfThePage) {
  EXPECT_EQ(get(server.address(), "/no").status, 503);
  EXPECT_EQ(get(server.address(), "/throws").status, 500);
  EXPECT_EQ(get(server.address(), "/throws").body, "broken\n");
  EXPECT_EQ(get(server.address(), "/page?since=1").status, 200);
}

TEST_F(HttpServerTest, AnUnknownPathIsNotFound) {
  const Answer answer = get(server.address(), "/else");
  EXPECT_EQ(answer.status, 404);
  EXPECT_NE(answer.body.find("/page\n"), std::string::npos);
}

TEST_F(HttpServerTest, AnswersHeadAndRefusesOtherMethods) {
  const Answer head = ask("HEAD /page HTTP/1.1\r\n\r\n");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  EXPECT_NE(head.head.find("Content-Length: 12\r\n"), std::string::npos);
  const Answer post = ask("POST /page HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_EQ(post.status, 405);
  EXPECT_NE(post.head.find("Allow: GET, HEAD"), std::string::npos);
}

TEST_F(HttpServerTest, MalformedRequestsAreRefused) {
  for (const std::string bytes : {"\r\n\r\n", "GET\r\n\r\n", "GET /page\r\n\r\n", "GET /page SMTP\r\n\r\n",
                                  "GET page HTTP/1.1\r\n\r\n", "WEFT\x01\x02\r\n\r\n"})
    EXPECT_EQ(ask(bytes).status, 400) << bytes;
  EXPECT_EQ(ask(std::string(9000, 'x')).status, 400);
  EXPECT_EQ(get(server.address(), "/page").status, 200);
}

TEST_F(HttpServerTest, ARequestMayArriveInManyParts) {
  HttpClient client(server.address());
  for (const char byte : std::string("GET /page HTTP/1.1\r\n\r\n")) client.send(std::string(1, byte));
  EXPECT_TRUE(client.receive().ends_with("<p>hello</p>"));
}

TEST_F(HttpServerTest, ServesManyLargePagesAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const Answer answer = get(server.address(), "/large");
      EXPECT_EQ(answer.body.size(), std::size_t{4} << 20);
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(HttpServerTest, SilentConnectionsDoNotBlockAProbe) {
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(std::make_unique<HttpClient>(server.address()));
  EXPECT_EQ(get(server.address(), "/page").status, 200);
  // The probe did not wait until silent connections were closed.
  silent.front()->send("GET /page HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(silent.front()->receive().ends_with("<p>hello</p>"));
}

// The server answers 256 connections at the same time and closes a silent one after 2 s.
TEST_F(HttpServerTest, AProbeWaitsForTheTimeoutOfManySilentConnections) {
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 300; ++i) silent.push_back(std::make_unique<HttpClient>(server.address()));
  EXPECT_EQ(get(server.address(), "/page").status, 200);
  EXPECT_EQ(silent.front()->receive(), "");
}

TEST_F(HttpServerTest, MakesOnePageAtATime) {
  int makers = 0, max_makers = 0;  // not atomic: the server serializes the pages
  HttpServer other("127.0.0.1:0", {{"/", [&] {
                                      max_makers = std::max(max_makers, ++makers);
                                      std::this_thread::yield();
                                      --makers;
                                      return HttpReply{};
                                    }}});
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) EXPECT_EQ(get(other.address(), "/").status, 200);
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(max_makers, 1);
}

TEST_F(HttpServerTest, ClosesOpenConnectionsWhenItIsDestroyed) {
  std::optional<HttpServer> other(std::in_place, "127.0.0.1:0", HttpServer::Pages{});
  HttpClient client(other->address());
  client.send("GET /");
  EXPECT_EQ(get(other->address(), "/").status,
            404);  // the server reads connections in order, so it is reading the first one
  other.reset();
  EXPECT_EQ(client.receive(), "");
}

TEST(HttpServerAddress, MustBeLoopbackUnlessPermitted) {
  EXPECT_EQ(kind_of([] { HttpServer("0.0.0.0:0", {}); }), rpc::ErrorKind::permission_denied);
  HttpServer open("0.0.0.0:0", {}, HttpAccess{.remote = true});
  EXPECT_EQ(get(open.address(), "/").status, 404);
  EXPECT_EQ(kind_of([] { HttpServer("nonsense", {}); }), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([] { HttpServer("unix:///x", {}); }), rpc::ErrorKind::invalid_argument);
  HttpServer first("127.0.0.1:0", {});
  EXPECT_EQ(kind_of([&] { HttpServer(first.address(), {}); }), rpc::ErrorKind::unavailable);
}

TEST(HttpServerAddress, ReportsWhyItCannotListen) {
  HttpServer first("127.0.0.1:0", {});
  const std::string taken = weft::test::message_of([&] { HttpServer(first.address(), {}); });
  EXPECT_NE(taken.find("Address already in use"), std::string::npos) << taken;
  try {
    HttpServer six("[::1]:0", {});
    EXPECT_TRUE(six.address().starts_with("[::1]:"));
    EXPECT_EQ(get(six.address(), "/").status, 404);
  } catch (const rpc::Error& error) {  // on Debian 12
    EXPECT_EQ(error.kind(), rpc::ErrorKind::unavailable);
    EXPECT_NE(std::string(error.what()).find("without IPv6"), std::string::npos) << error.what();
  }
}

TEST(HttpServerAccess, OnlyRequestsThatNameItsOwnHostAreServed) {
  HttpServer server("127.0.0.1:0", {{"/", [] { return HttpReply{}; }}}, HttpAccess{.own_host_only = true});
  const auto status = [&](const std::string& host) {
    return asked(server.address(), "GET / HTTP/1.1\r\n" + host + "\r\n").status;
  };
  for (const std::string own : {"localhost", "localhost:9000", "127.0.0.1", "127.0.0.1:80"})
    EXPECT_EQ(status("Host: " + own + "\r\n"), 200) << own;
  EXPECT_EQ(status("Host: " + server.address() + "\r\n"), 200);
  for (const std::string other : {"evil.example", "evil.example:80", "localhost.evil.example",
                                  "127.0.0.1.evil.example:80", "127.0.0.2", "[::1]:80", ":80"})
    EXPECT_EQ(status("Host: " + other + "\r\n"), 403) << other;
  EXPECT_EQ(status(""), 403);
  EXPECT_EQ(get(server.address(), "/unknown").status, 404);
}

// tests/tools/weft/dash_program_test.py logs in.
TEST(HttpServerAccess, OnlyUsersOfThePasswordFileAreServed) {
  const std::string file = testing::TempDir() + "weft_http_passwords_" + std::to_string(::getpid());
  std::ofstream(file) << ":#comment\nanna:weft:00000000000000000000000000000000\n";
  bool made = false;
  {
    HttpServer server("127.0.0.1:0",
                      {{"/",
                        [&] {
                          made = true;
                          return HttpReply{};
                        }}},
                      HttpAccess{.password_file = file});
    const Answer none = get(server.address(), "/");
    EXPECT_EQ(none.status, 401);
    EXPECT_EQ(none.body, "");
    EXPECT_NE(none.head.find("WWW-Authenticate: Digest qop=\"auth\", realm=\"weft\""), std::string::npos)
        << none.head;
    for (const std::string wrong : {"Basic YW5uYTp4", "Digest username=\"anna\"", "Digest"})
      EXPECT_EQ(asked(server.address(), "GET / HTTP/1.1\r\nAuthorization: " + wrong + "\r\n\r\n").status, 401)
          << wrong;
    EXPECT_EQ(get(server.address(), "/unknown").status, 401);
    std::filesystem::remove(file);
    EXPECT_EQ(get(server.address(), "/").status, 401) << "without the file nobody is let in";
  }
  EXPECT_FALSE(made);
  const auto serve = [&] { HttpServer("127.0.0.1:0", {}, HttpAccess{.password_file = file}); };
  EXPECT_EQ(kind_of(serve), rpc::ErrorKind::invalid_argument);
  std::ofstream(file) << "anna:another realm:0\n";
  EXPECT_EQ(kind_of(serve), rpc::ErrorKind::invalid_argument);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace weft::observe::http_server_test

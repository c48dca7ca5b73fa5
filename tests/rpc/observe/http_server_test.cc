#include <weft/rpc/observe/http_server.h>

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <stdexcept>
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

TEST_F(HttpServerTest, StatusOfThePage) {
  EXPECT_EQ(get(server.address(), "/no").status, 503);
  EXPECT_EQ(get(server.address(), "/throws").status, 500);
  EXPECT_EQ(get(server.address(), "/throws").body, "broken\n");
  EXPECT_EQ(get(server.address(), "/page?since=1").status, 200);
}

TEST_F(HttpServerTest, WhatThereIsNot) {
  const Answer answer = get(server.address(), "/else");
  EXPECT_EQ(answer.status, 404);
  EXPECT_NE(answer.body.find("/page\n"), std::string::npos);
}

TEST_F(HttpServerTest, OtherMethods) {
  const Answer head = ask("HEAD /page HTTP/1.1\r\n\r\n");
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  EXPECT_NE(head.head.find("Content-Length: 12\r\n"), std::string::npos);
  const Answer post = ask("POST /page HTTP/1.1\r\nContent-Length: 2\r\n\r\nhi");
  EXPECT_EQ(post.status, 405);
  EXPECT_NE(post.head.find("Allow: GET, HEAD"), std::string::npos);
}

TEST_F(HttpServerTest, WhatIsNoRequest) {
  for (const std::string bytes : {"\r\n\r\n", "GET\r\n\r\n", "GET /page\r\n\r\n", "GET /page SMTP\r\n\r\n",
                                  "GET page HTTP/1.1\r\n\r\n", "WEFT\x01\x02\r\n\r\n"})
    EXPECT_EQ(ask(bytes).status, 400) << bytes;
  EXPECT_EQ(ask(std::string(9000, 'x')).status, 400);
  EXPECT_EQ(get(server.address(), "/page").status, 200);
}

TEST_F(HttpServerTest, OneThatComesByteByByte) {
  HttpClient client(server.address());
  for (const char byte : std::string("GET /page HTTP/1.1\r\n\r\n")) client.send(std::string(1, byte));
  EXPECT_TRUE(client.receive().ends_with("<p>hello</p>"));
}

TEST_F(HttpServerTest, LargePagesAndManyAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      const Answer answer = get(server.address(), "/large");
      EXPECT_EQ(answer.body.size(), std::size_t{4} << 20);
    });
  for (auto& thread : threads) thread.join();
}

TEST_F(HttpServerTest, ThoseThatSayNothingKeepNobodyOut) {
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<HttpClient>(server.address()));
  EXPECT_EQ(get(server.address(), "/page").status, 200);
}

TEST_F(HttpServerTest, ClosesTheOldestSilentConnectionForANewOne) {
  HttpClient reader(server.address());  // it asked, and takes its time
  reader.send("GET /large HTTP/1.1\r\n\r\n");
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(std::make_unique<HttpClient>(server.address()));
  EXPECT_EQ(get(server.address(), "/page").status, 200);
  EXPECT_EQ(silent.front()->receive(), "");
  silent.back()->send("GET /page HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(silent.back()->receive().ends_with("<p>hello</p>"));
  EXPECT_GT(reader.receive().size(), std::size_t{4} << 20);
}

TEST_F(HttpServerTest, EndsWithConnectionsOpen) {
  std::optional<HttpServer> other(std::in_place, "127.0.0.1:0", HttpServer::Pages{});
  HttpClient client(other->address());
  client.send("GET /");
  other.reset();
  EXPECT_EQ(client.receive(), "");
}

TEST(HttpServerAddress, IsLoopbackUnlessItIsSaid) {
  EXPECT_EQ(kind_of([] { HttpServer("0.0.0.0:0", {}); }), rpc::ErrorKind::permission_denied);
  HttpServer open("0.0.0.0:0", {}, true);
  EXPECT_EQ(kind_of([] { HttpServer("nonsense", {}); }), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([] { HttpServer("unix:///x", {}); }), rpc::ErrorKind::invalid_argument);
  HttpServer first("127.0.0.1:0", {});
  EXPECT_EQ(kind_of([&] { HttpServer(first.address(), {}); }), rpc::ErrorKind::unavailable);
}

}  // namespace
}  // namespace weft::observe::http_server_test

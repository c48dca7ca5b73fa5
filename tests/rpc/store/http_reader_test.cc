#include <weft/rpc/store/internal/http_reader.h>

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include <random>

#include "tests/support/errors.h"

namespace weft::rpc::detail::http_reader_test {
namespace {

struct Response {
  unsigned status = 0;
  std::string body;
  bool keeps = false;
  std::size_t taken = 0;
};

// Given in pieces of that size.
Response read(std::string_view bytes, std::size_t piece, bool then_ends = false) {
  Response response;
  HttpReader reader([&](std::string_view part) { response.body += part; });
  while (!bytes.empty() && !reader.complete()) {
    const std::string_view some = bytes.substr(0, piece);
    const std::size_t taken = reader.push(some);
    response.taken += taken;
    bytes.remove_prefix(some.size());
    if (!reader.complete()) {
      EXPECT_EQ(taken, some.size());
    }
  }
  if (then_ends) reader.connection_ended();
  EXPECT_TRUE(reader.complete());
  response.status = reader.status();
  response.keeps = reader.keeps_connection();
  return response;
}

std::string refusal(const std::string& bytes) {
  return test::message_of([&] { return read(bytes, bytes.size(), true), 0; });
}

TEST(HttpReader, ReadsABodyOfKnownLengthInAnyPieces) {
  const std::string bytes = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\ncontent-length:  5 \r\n\r\nhello";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    const Response response = read(bytes, piece);
    EXPECT_EQ(response.status, 200U);
    EXPECT_EQ(response.body, "hello");
    EXPECT_TRUE(response.keeps);
  }
}

TEST(HttpReader, ReadsChunksAndTrailersInAnyPieces) {
  const std::string bytes =
      "HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\nTrailer: Grpc\r\n\r\n"
      "5\r\nhello\r\n01;name=value\r\n \r\nA\r\n0123456789\r\n0\r\nGrpc: x\r\n\r\n";
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    const Response response = read(bytes, piece);
    EXPECT_EQ(response.status, 404U);
    EXPECT_EQ(response.body, "hello 0123456789");
    EXPECT_TRUE(response.keeps);
    EXPECT_EQ(response.taken, bytes.size());
  }
}

TEST(HttpReader, StopsWhereTheResponseEnds) {
  const std::string first = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
  EXPECT_EQ(read(first + "HTTP/1.1 500", 1000).taken, first.size());
  EXPECT_EQ(read("HTTP/1.1 204 No Content\r\n\r\nx", 1000).body, "");
  EXPECT_EQ(read("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 1000).body, "");
}

TEST(HttpReader, ABodyWithoutALengthGoesToTheEndOfTheConnection) {
  const Response response = read("HTTP/1.0 200 OK\r\n\r\nhello", 3, true);
  EXPECT_EQ(response.body, "hello");
  EXPECT_FALSE(response.keeps);
}

TEST(HttpReader, SaysWhetherTheConnectionIsKept) {
  EXPECT_FALSE(read("HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 0\r\n\r\n", 100).keeps);
  EXPECT_FALSE(read("HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n", 100).keeps);
  EXPECT_TRUE(read("HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 0\r\n\r\n", 100).keeps);
}

TEST(HttpReader, SkipsInterimResponses) {
  const Response response = read(
      "HTTP/1.1 100 Continue\r\nContent-Length: 9\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 7);
  EXPECT_EQ(response.status, 200U);
  EXPECT_EQ(response.body, "ok");
}

TEST(HttpReader, RefusesWhatItCannotBelieve) {
  const std::string ok = "HTTP/1.1 200 OK\r\n";
  EXPECT_EQ(refusal("SSH-2.0-OpenSSH\r\n"), "not an HTTP response: it begins with 'SSH-2.0-OpenSSH'");
  for (const std::string& bytes :
       {std::string("HTTP/1.1 20x OK\r\n\r\n"), std::string("HTTP/1.1 099 OK\r\n\r\n"),
        std::string("HTTP/2 200\r\n\r\n"), std::string("HTTP/1.1 101 Switching\r\n\r\n"),
        ok + "no colon\r\n\r\n", ok + "Content-Length: -1\r\n\r\n", ok + "Content-Length: 1e3\r\n\r\n",
        ok + "Content-Length: 99999999999999999999\r\n\r\n", ok + "Content-Length: \r\n\r\n",
        ok + "Content-Length: 1\r\nContent-Length: 2\r\n\r\n", ok + "Transfer-Encoding: gzip\r\n\r\n",
        ok + "Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n",
        ok + "Transfer-Encoding: chunked\r\n\r\nx\r\n", ok + "Transfer-Encoding: chunked\r\n\r\n\r\n",
        ok + "Transfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
        ok + "Transfer-Encoding: chunked\r\n\r\n1\r\nxx\r\n"})
    EXPECT_EQ(refusal(bytes).find("not an HTTP response: "), 0U) << bytes;
  EXPECT_EQ(refusal(ok + "Content-Length: 5\r\n\r\nhell"), "not an HTTP response: it was cut short");
  EXPECT_EQ(refusal(ok + "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"),
            "not an HTTP response: it was cut short");
  EXPECT_EQ(refusal(ok + "X: " + std::string(HttpReader::max_head, 'x')),
            "not an HTTP response: its head is too long");
  EXPECT_EQ(
      refusal(ok + "Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + std::string(HttpReader::max_head, 'x')),
      "not an HTTP response: its head is too long");
}

// Whatever comes is either a response or refused: no crash, nothing read twice.
TEST(HttpReader, SurvivesMutations) {
  const std::string good =
      "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: "
      "keep-alive\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (unsigned changes = 1 + random() % 4; changes > 0; --changes) {
      const std::size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(at, random() % 4);
          break;
        default:
          bytes.insert(at, 1, static_cast<char>(random()));
      }
      if (bytes.empty()) bytes = "x";
    }
    std::size_t body = 0;
    HttpReader reader([&](std::string_view part) { body += part.size(); });
    try {
      std::string_view rest = bytes;
      while (!rest.empty() && !reader.complete()) {
        const std::size_t piece = std::min<std::size_t>(rest.size(), 1 + random() % 16);
        (void)reader.push(rest.substr(0, piece));
        rest.remove_prefix(piece);
      }
      reader.connection_ended();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::protocol_error);
      ++refused;
    }
    EXPECT_LE(body, bytes.size());
  }
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace weft::rpc::detail::http_reader_test

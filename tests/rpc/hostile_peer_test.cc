// Peers that follow the protocol but try to exhaust the agent.
#include "tests/support/cluster.h"
#include "tests/support/raw_peer.h"

namespace weft::rpc::hostile_peer_test {
namespace {

using namespace probe;
using namespace test;

TEST(HostilePeer, LeavesNoStateBehind) {
  Watched server("node");
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < 200; ++i) {
    Socket socket = Socket::connected(server.address());
    const std::vector<std::string> addresses(25, "unix:///" + std::string(250, 'a'));
    socket.send(test::bytes_of(OutgoingMessage::hello({1, 1, 0, "life " + std::to_string(i), i, addresses})));
    socket.send(plain(FrameKind::ping, 1));
    ASSERT_TRUE(socket.next()) << "its Hello";
    ASSERT_TRUE(socket.next()) << "its pong";
    socket.end_sending();
    ASSERT_NO_THROW(socket.frames_to_end());
    server.wait_for_ended(i + 1);
    if (i == 20) bytes = allocated_bytes();
  }
  EXPECT_LT(allocated_bytes(), bytes + (1U << 20));  // their hellos would occupy 2.4 MB
}

TEST(HostilePeer, MustNotHaveAnAddressAsItsName) {
  Watched server("node"), other("other");
  Socket socket = Socket::connected(server.address());
  socket.send(hello(other.address()));
  socket.end_sending();
  ASSERT_NO_THROW(socket.frames_to_end());
  EXPECT_EQ(got(server->connect(other.address()).ready()), other->id());
  Socket another = Socket::connected(server.address());
  another.send(hello(std::string(1000, 'n')));  // nor a name of unlimited length
  another.send(plain(FrameKind::ping, 1));
  another.end_sending();
  EXPECT_LE(another.frames_to_end(), 1U) << "at most a pong after the Hello";
}

TEST(HostilePeer, ThatReadsNoPongsCostsOnlyOne) {
  Watched server("node");
  Bytes pings;
  for (const Bytes ping = plain(FrameKind::ping, 1); pings.size() < 1'000'000;)
    pings.insert(pings.end(), ping.begin(), ping.end());
  Socket socket = Socket::connected(server.address());
  socket.send(hello("asker"));
  ASSERT_TRUE(socket.send(pings));
  ASSERT_TRUE(socket.next()) << "its Hello";
  const std::size_t bytes = allocated_bytes();
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(socket.send(pings));  // far more than the socket buffers hold
  EXPECT_LT(allocated_bytes(), bytes + (1U << 20)) << "one waits, however many are asked for";
  ASSERT_TRUE(socket.next()) << "a pong";
}

std::int64_t one() { return 1; }
using One = Function<"one", &one>;

TEST(HostilePeer, ThatReadsNoRepliesDoesNotExhaustTheCallLimit) {
  AgentOptions options;
  options.name = "node";
  options.listen = {"tcp://127.0.0.1:0"};
  options.limits.calls_total = 8;
  options.log = [](const LogRecord&) {};
  Agent server(options);
  server.serve<One>();
  Socket socket = Socket::connected(server.addresses().front(), 16 << 10);  // soon full of replies
  socket.send(hello("asker"));
  ASSERT_TRUE(socket.next()) << "its Hello";
  std::uint64_t asked = 0;
  for (; server.counts().serving < 5000; ++asked)  // more than one read delivers: the replies are queued
    ASSERT_TRUE(socket.send(sealed(request(), "no such method", asked + 1)));
  AgentOptions others;
  others.name = "other";
  others.same_host = false;
  Agent other(others);
  EXPECT_EQ(got(other.connect(server.addresses().front()).call<One>()), 1);
  EXPECT_EQ(server.counts().calls_shed, 0U);
}

std::atomic<int> made{0};
Buffer make() {
  ++made;
  return Buffer::allocate(1 << 20);
}
using Make = Function<"make", &make, non_blocking>;

// It sends pings, so it is not silent. Its further requests wait, and cost it alone.
TEST(HostilePeer, ThatReadsNoRepliesIsServedNoFurther) {
  AgentOptions options;
  options.name = "node";
  options.listen = {"tcp://127.0.0.1:0"};
  options.limits.in_flight = 64 << 10;
  Agent server(options);
  server.serve<Make>();
  made = 0;
  Socket socket = Socket::connected(server.addresses().front(), 16 << 10);
  socket.send(hello("asker"));
  for (std::uint64_t id = 1; id <= 20; ++id) socket.send(sealed(request(), "make", id));
  eventually("the last request has arrived", [&] { return server.counts().calls_served == 20; });
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(socket.send(plain(FrameKind::ping, 1)));
  EXPECT_LT(made, 15) << "the kernel holds a few MB, and the other requests wait";
  Agent other({.name = "other"});
  EXPECT_EQ(got(other.connect(server.addresses().front()).call<Make>()).size(), std::uint64_t{1} << 20);
}

Bytes announced(FrameKind kind, std::uint32_t header_words, std::uint64_t body) {
  Bytes bytes(Prefix::size);
  encode({kind, 0, header_words, 0, 1, body}, PrefixBytes(bytes.data(), Prefix::size));
  return bytes;
}

AgentOptions with_usual_limits() {
  AgentOptions options;
  options.name = "node";
  options.listen = {"tcp://127.0.0.1:0"};
  options.receive_pool = 0;
  options.log = [](const LogRecord&) {};
  return options;
}

TEST(HostilePeer, CostsNoMemoryBeforeItsHello) {
  Agent server(with_usual_limits());
  const Bytes megabyte(1 << 20);
  std::vector<Socket> sockets;
  const std::size_t bytes = allocated_bytes();
  for (const auto& [kind, words, body] : {std::tuple(FrameKind::hello, 8U << 20, std::uint64_t{0}),
                                          std::tuple(FrameKind::hello, 100U, std::uint64_t{16} << 30),
                                          std::tuple(FrameKind::request, 8U << 20, std::uint64_t{0}),
                                          std::tuple(FrameKind::goodbye, 8U << 20, std::uint64_t{0})}) {
    for (int i = 0; i < 10; ++i) {
      Socket& socket = sockets.emplace_back(Socket::connected(server.addresses().front()));
      socket.send(announced(kind, words, body));
      bool takes = true;
      for (int sent = 0; takes && sent < 60; ++sent) takes = socket.send(megabyte);
      EXPECT_FALSE(takes) << "60 MiB of a frame that announces 64";
    }
  }
  EXPECT_LT(allocated_bytes(), bytes + (4U << 20));
  EXPECT_EQ(server.counts().connections_made, 0U);
}

// Connections that are refused, or closed for a bad frame, and notifications that the agent does not serve.
TEST(HostilePeer, CausesFewWarnings) {
  std::atomic<std::size_t> closed{0}, refusals{0}, bad_frames{0}, notifications{0};
  AgentOptions options = with_usual_limits();
  options.log = [&](const LogRecord& record) {
    const auto says = [&](const char* words) { return record.message.find(words) != std::string_view::npos; };
    if (record.level == LogLevel::warning) {
      if (says("expected a Hello")) ++refusals;
      if (says("a second Hello")) ++bad_frames;
      if (says("a notification from")) ++notifications;
    }
    if (says(": closed: ")) ++closed;
  };
  Agent server(std::move(options));
  for (std::size_t i = 1; i <= 40; ++i) {
    Socket socket = Socket::connected(server.addresses().front());
    if (i % 2 == 0) socket.send(hello("peer"));
    socket.send(i % 2 == 0 ? hello("peer") : plain(FrameKind::ping, 1));
    socket.frames_to_end();
    eventually("its end is logged", [&] { return closed == i; });
  }
  EXPECT_EQ(refusals, 10U);
  EXPECT_EQ(bad_frames, 10U);
  Socket socket = Socket::connected(server.addresses().front());
  socket.send(hello("notifier"));
  ASSERT_TRUE(socket.next()) << "its Hello";
  for (std::uint64_t id = 1; id <= 20; ++id)
    socket.send(sealed(request(), "no such method", id, frame_flags::notify));
  socket.send(plain(FrameKind::ping, 21));
  for (;;) {
    const auto frame = socket.next();
    ASSERT_TRUE(frame);
    if (frame->prefix.kind == FrameKind::pong) break;
  }
  EXPECT_EQ(notifications, 10U);
}

TEST(HostilePeer, ThatStatesMalformedAddressesCausesFewWarnings) {
  std::atomic<std::size_t> malformed{0};
  AgentOptions options = with_usual_limits();
  options.log = [&](const LogRecord& record) {
    if (record.level == LogLevel::warning &&
        record.message.find("states a malformed address") != std::string_view::npos)
      ++malformed;
  };
  Agent server(std::move(options));
  Socket socket = Socket::connected(server.addresses().front());
  const std::vector<std::string> addresses(40, "no address");
  socket.send(test::bytes_of(OutgoingMessage::hello({1, 1, 0, "peer", 77, addresses})));
  socket.send(plain(FrameKind::ping, 1));
  ASSERT_TRUE(socket.next()) << "its Hello";
  ASSERT_TRUE(socket.next()) << "its pong";
  EXPECT_EQ(malformed, 10U);
}

class Shelf {
 public:
  Future<std::int64_t> hold(Buffer) {
    std::lock_guard lock(mutex_);
    return held_.emplace_back().future();
  }
  std::size_t held() const {
    std::lock_guard lock(mutex_);
    return held_.size();
  }
  using Service = rpc::Service<"shelf", Method<"hold", &Shelf::hold, non_blocking>>;

 private:
  mutable std::mutex mutex_;  // guards held_
  std::vector<Promise<std::int64_t>> held_;
};

// It ignores the credit that the agent grants it.
TEST(HostilePeer, HasAtMostTwiceTheLimitsOfUnansweredRequests) {
  // 200'000 bytes are reached with the fifth request of the second case.
  for (const auto& [size, most] : {std::pair(std::size_t{10}, 8U), std::pair(std::size_t{40'000}, 5U)}) {
    AgentOptions options = with_usual_limits();
    options.limits.calls = 4;
    options.limits.in_flight = 100'000;
    Agent server(std::move(options));
    const auto shelf = std::make_shared<Shelf>();
    server.serve(shelf);
    Socket socket = Socket::connected(server.addresses().front());
    socket.send(hello("asker"));
    ASSERT_TRUE(socket.next()) << "its Hello";
    for (std::uint64_t id = 1; id <= most + 3; ++id)
      socket.send(sealed(request(filled(size)), "shelf.hold", id));
    for (std::uint64_t id = most + 1; id <= most + 3; ++id) {
      auto frame = socket.next();
      ASSERT_TRUE(frame && frame->prefix.kind == FrameKind::reply);
      EXPECT_EQ(frame->prefix.call_id, id);
      const auto failure = IncomingMessage(std::move(*frame), Limits{}).failure();
      ASSERT_TRUE(failure);
      EXPECT_EQ(failure->kind, ErrorKind::resource_exhausted) << failure->message;
    }
    EXPECT_EQ(shelf->held(), most);
    EXPECT_EQ(server.counts().calls_shed, 3U);
  }
}

TEST(HostilePeer, ThatDoesNotCompleteItsHelloCostsLittle) {
  Agent server(with_usual_limits());
  const Bytes most(Prefix::max_control_header - 1);
  std::vector<Socket> sockets;
  const std::size_t bytes = allocated_bytes();
  for (int i = 0; i < 100; ++i) {
    Socket& socket = sockets.emplace_back(Socket::connected(server.addresses().front()));
    socket.send(announced(FrameKind::hello, Prefix::max_control_header / 8, 0));
    socket.send(most);
    std::byte its_hello[1024];
    ASSERT_NE(socket.receive(its_hello), 0U);
  }
  EXPECT_LT(allocated_bytes(), bytes + 100 * (56U << 10));
}

TEST(HostilePeer, ThatClaimsLargeRequestsIsChargedForThem) {
  Agent server(with_usual_limits());
  server.serve<One>();
  constexpr std::uint64_t claim = std::uint64_t{16} << 30;
  {
    std::vector<Socket> sockets;
    for (int i = 0; i < 10; ++i) {
      Socket& socket = sockets.emplace_back(Socket::connected(server.addresses().front()));
      Bytes bytes = hello("claimer " + std::to_string(i));
      for (const Bytes& more : {plain(FrameKind::ping, 1), announced(FrameKind::request, 10, claim)})
        bytes.insert(bytes.end(), more.begin(), more.end());
      socket.send(bytes);
      ASSERT_TRUE(socket.next()) << "its Hello";
      ASSERT_TRUE(socket.next()) << "its pong, which leaves when all that was read has been looked at";
    }
    EXPECT_GE(server.counts().serving_bytes, claim);
    EXPECT_LT(server.counts().serving_bytes, 2 * claim) << "the others wait, or are refused";
    AgentOptions others;
    others.name = "other";
    others.same_host = false;
    EXPECT_EQ(got(Agent(others).connect(server.addresses().front()).call<One>()), 1);
  }
  eventually("their end gives all back", [&] { return server.counts().serving_bytes == 0; });
}

}  // namespace
}  // namespace weft::rpc::hostile_peer_test

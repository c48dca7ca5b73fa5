// The contract of Connection and Transport, run against every transport.
#include <weft/rpc/transport/connection.h>

#include <weft/rpc/transport/in_process.h>
#include <weft/rpc/transport/internal/striped_stream.h>
#include <weft/rpc/transport/shm/shm_transport.h>
#include <weft/rpc/transport/transport.h>

#include <unistd.h>
#include <asio/ip/tcp.hpp>

#include <cstring>
#include <set>

#include "tests/support/byte_stream_pair.h"
#include "tests/support/errors.h"
#include "tests/support/loopback.h"
#include "tests/support/messages.h"
#include "tests/support/shm.h"

namespace weft::rpc::connection_test {
namespace {

using namespace test;

// --- The transports: add an entry for a new transport ---

struct Case {
  const char* name;
  std::shared_ptr<Transport> (*make)();
  std::string (*listen)();                       // an address to listen on
  std::string (*nobody)();                       // an address where nobody listens
  const char* (*missing)() = [] { return ""; };  // why this machine does not support it
  std::size_t lanes = 0;                         // per connection
};

constexpr std::size_t large = (std::size_t{1} << 20) + 1;  // uses all lanes if the connection has lanes

std::string socket_path() {
  static int number = 0;
  return "unix:///tmp/weft-test-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
}

std::string free_port(const char* host) {
  asio::io_context io;
  const asio::ip::tcp::acceptor taken(io, {asio::ip::make_address(host), 0});
  return Address{"tcp", host, std::to_string(taken.local_endpoint().port()), {}}.text();
}

const char* no_ipv6() {
  try {
    (void)free_port("::1");
    return "";
  } catch (const asio::system_error&) {
    return "this machine has no IPv6";
  }
}

const Case in_process{
    "InProcess", []() -> std::shared_ptr<Transport> { return std::make_shared<InProcess>(); },
    [] { return std::string("inproc://here"); }, [] { return std::string("inproc://nobody"); }};
const Case tcp_v4{"TcpV4", []() -> std::shared_ptr<Transport> { return make_tcp_transport(); },
                  [] { return std::string("tcp://127.0.0.1:0"); },
                  [] { return free_port(test::own_loopback().c_str()); }};
const Case tcp_v6{"TcpV6", []() -> std::shared_ptr<Transport> { return make_tcp_transport(); },
                  [] { return std::string("tcp://[::1]:0"); }, [] { return free_port("::1"); }, no_ipv6};
const Case tcp_with_lanes{"TcpLanes", tcp_v4.make, tcp_v4.listen, tcp_v4.nobody, tcp_v4.missing, 3};
const char* no_shm() {
  static std::string why;
  return test::shm_supported(&why) ? "" : why.c_str();
}
const Case shared_memory{"Shm", []() -> std::shared_ptr<Transport> { return make_shm_transport(); },
                         [] { return "shm" + socket_path().substr(4); },
                         [] { return "shm" + socket_path().substr(4); }, no_shm};
const Case shared_memory_without_bulk{"ShmRings",
                                      []() -> std::shared_ptr<Transport> {
                                        return make_shm_transport({.ring_bytes = 64 << 10, .bulk = false});
                                      },
                                      [] { return "shm" + socket_path().substr(4); },
                                      [] { return "shm" + socket_path().substr(4); }, no_shm};
const Case unix_socket{"Unix", []() -> std::shared_ptr<Transport> { return make_unix_transport(); },
                       socket_path, socket_path};

// --- The suite ---

class ConnectionTest : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (*GetParam().missing() != 0) GTEST_SKIP() << GetParam().missing();
    listen({});
  }
  void TearDown() override {
    listener_.reset();
    on(*theirs_, [] {});  // a connection that was accepted before may be passed on after close()
    for (const auto& end : ends_)
      on(end->loop(), [&] { end->connection().close(Error(ErrorKind::shut_down, "test over")); });
    for (const auto& end : ends_) {
      end->closed();
      EXPECT_EQ(end->times_closed(), 1U);
      EXPECT_TRUE(end->called_on_its_loop());
    }
  }

  void listen(const Limits& limits) {
    listener_.reset();
    listener_ = transport_->listen(
        Address::parse(GetParam().listen()), [this] { return theirs_; }, limits, false,
        [this](std::shared_ptr<Connection> connection) { accepted_.give(connection); });
  }
  std::shared_ptr<Connection> connect(const Limits& limits = {}) {
    Handover<Result<std::shared_ptr<Connection>>> made;
    transport_->connect(listener_->address(), ours_, limits, [&](Result<std::shared_ptr<Connection>> result) {
      EXPECT_TRUE(ours_->running_here());
      made.give(std::move(result));
    });
    return made.take().get();
  }
  std::shared_ptr<End> start(std::shared_ptr<Connection> connection) {
    auto end = ends_.emplace_back(std::make_shared<End>(connection));
    on(end->loop(), [&] { connection->start(end); });
    return end;
  }
  // Two ends, both started.
  std::pair<std::shared_ptr<End>, std::shared_ptr<End>> pair() {
    auto here = connect();
    auto there = accepted_.take();
    const std::pair ends{start(std::move(here)), start(std::move(there))};
    if (GetParam().lanes != 0) give_lanes(*ends.first, *ends.second);
    return ends;
  }
  void give_lanes(End& here, End& there) {
    std::vector<std::unique_ptr<ByteStream>> first, second;
    for (std::size_t i = 0; i < GetParam().lanes; ++i) {
      auto lane = test::PairedStream::make(ours_, theirs_,
                                           {.max_a_call = 200'000, .would_block_one_in = 10, .seed = i});
      first.push_back(std::move(lane.first));
      second.push_back(std::move(lane.second));
    }
    const auto stripe = [](End& end, std::vector<std::unique_ptr<ByteStream>> lanes) {
      on(end.loop(), [&] {
        StripedStream* striped = end.connection().add_lanes(std::move(lanes));
        striped->stripe_reads();
        striped->stripe_writes();
      });
    };
    stripe(here, std::move(first));
    stripe(there, std::move(second));
  }

  static OutboundFrame frame(std::uint64_t id, const std::vector<std::size_t>& attachments = {}) {
    auto message = OutgoingMessage::request(0);
    for (std::size_t i = 0; i < attachments.size(); ++i) message->attach(content(id, i, attachments[i]));
    return message->seal_request({1, 1, 0}, id, 0);
  }
  static Buffer content(std::uint64_t id, std::size_t i, std::size_t size) {
    Buffer buffer = Buffer::allocate(size);
    for (std::size_t at = 0; at < size; ++at) buffer.data()[at] = std::byte(at * 31 + at / 4096 + i * 7 + id);
    return buffer;
  }
  static void expect(const InboundFrame& got, std::uint64_t id,
                     const std::vector<std::size_t>& attachments = {}) {
    ASSERT_EQ(got.prefix.call_id, id);
    const auto found = test::attachments_of(got);
    ASSERT_EQ(found.size(), attachments.size());
    for (std::size_t i = 0; i < attachments.size(); ++i) {
      ASSERT_EQ(found[i].size(), attachments[i]);
      if (attachments[i] == 0) continue;
      const Buffer expected = content(id, i, attachments[i]);
      ASSERT_EQ(std::memcmp(found[i].data(), expected.data(), attachments[i]), 0) << "attachment " << i;
    }
  }
  static void send(End& end, OutboundFrame frame) {
    on(end.loop(), [&] { end.connection().send(std::move(frame)); });
  }

  std::shared_ptr<Transport> transport_ = GetParam().make();
  std::shared_ptr<AsioLoop> ours_ = std::make_shared<AsioLoop>(), theirs_ = std::make_shared<AsioLoop>();
  std::unique_ptr<Listener> listener_;
  Handover<std::shared_ptr<Connection>> accepted_;
  std::vector<std::shared_ptr<End>> ends_;
};

INSTANTIATE_TEST_SUITE_P(Transports, ConnectionTest,
                         testing::Values(in_process, tcp_v4, tcp_v6, tcp_with_lanes, unix_socket,
                                         shared_memory, shared_memory_without_bulk),
                         [](const auto& info) { return info.param.name; });

TEST_P(ConnectionTest, FramesArriveInOrder) {
  auto [here, there] = pair();
  constexpr std::uint64_t n = 2000;
  for (std::uint64_t i = 0; i < n; i += 100)
    on(here->loop(), [&, end = here.get()] {
      for (std::uint64_t j = i; j < i + 100; ++j) end->connection().send(frame(j));  // coalesced
    });
  for (std::uint64_t i = 0; i < n; ++i) expect(there->next(), i);
}

TEST_P(ConnectionTest, FramesSentAheadArriveBeforeQueuedFrames) {
  auto [here, there] = pair();
  constexpr std::uint64_t n = 24;
  on(here->loop(), [&, end = here.get()] {
    for (std::uint64_t i = 0; i < n; ++i) end->connection().send(frame(i, {i % 3 == 0 ? large : 100}));
    end->connection().send_ahead(OutgoingMessage::plain(FrameKind::pong, 7));
  });
  // In process no frame is queued: a sent frame has arrived.
  const std::uint64_t place = std::string_view(GetParam().name) == "InProcess" ? n : 0;
  for (std::uint64_t i = 0; i <= n; ++i) {
    const InboundFrame got = there->next();
    if (i == place) {
      EXPECT_EQ(got.prefix.kind, FrameKind::pong);
      EXPECT_EQ(got.prefix.call_id, 7U);
    } else {
      const std::uint64_t id = i < place ? i : i - 1;
      expect(got, id, {id % 3 == 0 ? large : 100});
    }
  }
}

TEST_P(ConnectionTest, AttachmentsOfAllSizesArrive) {
  auto [here, there] = pair();
  const std::vector<std::vector<std::size_t>> shapes{
      {0},
      {1},
      {63, 64, 65},
      {0, 0, 0},
      {4096, 0, 1},
      {5'000'001},
      {1'000'000, 3, 2'000'000, 0, 70'000},
      std::vector<std::size_t>(300, 100),
      std::vector<std::size_t>(70, 70'000),
  };
  for (std::size_t i = 0; i < shapes.size(); ++i) send(*here, frame(i, shapes[i]));
  for (std::size_t i = 0; i < shapes.size(); ++i) expect(there->next(), i, shapes[i]);
}

TEST_P(ConnectionTest, LargeHeadersArrive) {
  auto [here, there] = pair();
  for (const std::size_t size : {30'000U, 40'000U, 70'000U, 3'000'000U}) {
    auto message = OutgoingMessage::request(1);
    message->argument(0).set_text(std::string(size, 'x'));
    send(*here, message->seal_request({1, 1, 0}, size, 0));
    send(*here, frame(size + 1));
    IncomingMessage got(there->next(), {});
    EXPECT_EQ(got.argument(0).get_text(), std::string(size, 'x'));
    expect(there->next(), size + 1);
  }
}

TEST_P(ConnectionTest, BothDirectionsAtOnce) {
  auto [here, there] = pair();
  const std::vector<std::size_t> shape{2'000'003, 5};
  for (std::uint64_t i = 0; i < 5; ++i) {
    send(*here, frame(i, shape));
    send(*there, frame(100 + i, shape));
  }
  for (std::uint64_t i = 0; i < 5; ++i) {
    expect(there->next(), i, shape);
    expect(here->next(), 100 + i, shape);
  }
}

TEST_P(ConnectionTest, SentCallbackRunsOnceOnTheLoopAfterTheBytesLeft) {
  auto [here, there] = pair();
  std::atomic<int> said{0};
  Event all;
  for (std::uint64_t i = 0; i < 3; ++i) {
    OutboundFrame out = frame(i, {3'000'000});
    out.sent = [&, end = here.get()] {
      EXPECT_TRUE(end->loop().running_here());
      if (++said == 3) all.set();
    };
    send(*here, std::move(out));
  }
  all.wait();
  for (std::uint64_t i = 0; i < 3; ++i) expect(there->next(), i, {3'000'000});
  EXPECT_EQ(said, 3);
}

TEST_P(ConnectionTest, FramesThatArriveBeforeStartAreDeliveredByIt) {
  auto here = start(connect());
  for (std::uint64_t i = 0; i < 10; ++i) send(*here, frame(i, {1000}));
  auto there = start(accepted_.take());
  for (std::uint64_t i = 0; i < 10; ++i) expect(there->next(), i, {1000});
}

TEST_P(ConnectionTest, FinishSendsQueuedFramesAndThenCloses) {
  auto [here, there] = pair();
  on(here->loop(), [&, end = here.get()] {
    for (std::uint64_t i = 0; i < 20; ++i) end->connection().send(frame(i, {large}));
    end->connection().finish(Error(ErrorKind::shut_down, "that was all"));
    end->connection().send(frame(99));  // too late
    end->connection().finish(Error(ErrorKind::internal, "again"));
    EXPECT_EQ(end->times_closed(), 0U);  // not from within the call
  });
  for (std::uint64_t i = 0; i < 20; ++i) expect(there->next(), i, {large});
  EXPECT_EQ(there->closed().kind(), ErrorKind::peer_lost);
  EXPECT_STREQ(here->closed().what(), "that was all");
  EXPECT_EQ(there->frames_left(), 0U);
}

// A socket that is closed with unread bytes resets the connection: what it sent last would be lost.
TEST_P(ConnectionTest, FinishLosesNoFrameWhileTheOtherSideSends) {
  auto [here, there] = pair();
  for (std::uint64_t i = 0; i < 30; ++i) send(*there, frame(i, {large}));
  here->next();
  on(here->loop(), [&, end = here.get()] {
    end->connection().send(frame(1000, {3'000'000}));
    end->connection().finish(Error(ErrorKind::shut_down, "that was all"));
  });
  expect(there->next(), 1000, {3'000'000});
  there->closed();
  EXPECT_STREQ(here->closed().what(), "that was all");
}

TEST_P(ConnectionTest, BothSidesMayFinishAtOnce) {
  auto [here, there] = pair();
  for (auto* end : {here.get(), there.get()})
    on(end->loop(), [&] {
      end->connection().send(frame(1, {2'000'000}));
      end->connection().finish(Error(ErrorKind::shut_down, "done"));
    });
  here->closed();
  there->closed();
}

TEST_P(ConnectionTest, CloseReportsItsReasonLocallyAndPeerLostToTheOtherSide) {
  auto [here, there] = pair();
  on(here->loop(), [&, end = here.get()] {
    end->connection().close(Error(ErrorKind::cancelled, "enough"));
    EXPECT_EQ(end->times_closed(), 0U);  // not from within the call
    end->connection().close(Error(ErrorKind::internal, "again"));
    end->connection().send(frame(1));
    end->connection().finish(Error(ErrorKind::internal, "again"));
  });
  EXPECT_EQ(here->closed().kind(), ErrorKind::cancelled);
  EXPECT_EQ(there->closed().kind(), ErrorKind::peer_lost);
  EXPECT_EQ(there->frames_left(), 0U);
}

TEST_P(ConnectionTest, AConnectionClosedBeforeStartReportsTheErrorAtStart) {
  auto connection = connect();
  auto other = start(accepted_.take());
  on(*connection->loop(), [&] { connection->close(Error(ErrorKind::cancelled, "not wanted")); });
  auto end = start(connection);
  EXPECT_EQ(end->closed().kind(), ErrorKind::cancelled);
  other->closed();
}

TEST_P(ConnectionTest, FramesQueuedAtTheEndAreReleased) {
  auto [here, there] = pair();
  auto borrowed = std::make_shared<int>(1);
  for (int i = 0; i < 50; ++i) {
    OutboundFrame out = frame(1, {large});
    out.sent = [borrowed] {};
    send(*here, std::move(out));
  }
  on(here->loop(), [&, end = here.get()] { end->connection().close(Error(ErrorKind::cancelled, "enough")); });
  here->closed();
  there->closed();
  on(here->loop(), [] {});
  EXPECT_EQ(borrowed.use_count(), 1);
}

TEST_P(ConnectionTest, AnErrorOfTheObserverClosesTheConnection) {
  auto [here, there] = pair();
  there->react = [](const InboundFrame& got) {
    if (got.prefix.call_id == 1) throw Error(ErrorKind::protocol_error, "not in this state");
  };
  for (std::uint64_t i = 0; i < 5; ++i) send(*here, frame(i));
  EXPECT_STREQ(there->closed().what(), "not in this state");
  EXPECT_EQ(there->frames_left(), 1U);  // no frame is delivered after the refused one
  here->closed();
}

TEST_P(ConnectionTest, AnotherExceptionOfTheObserverIsAnInternalError) {
  auto [here, there] = pair();
  there->react = [](const InboundFrame&) { throw std::logic_error("a bug"); };
  send(*here, frame(1));
  EXPECT_EQ(there->closed().kind(), ErrorKind::internal);
  here->closed();
}

TEST_P(ConnectionTest, TheObserverMayCloseAndFinishAndSend) {
  auto [here, there] = pair();
  there->react = [end = there.get()](const InboundFrame& got) {
    if (got.prefix.call_id == 0) end->connection().send(frame(7));
    if (got.prefix.call_id == 1) end->connection().finish(Error(ErrorKind::shut_down, "seen enough"));
  };
  for (std::uint64_t i = 0; i < 5; ++i) send(*here, frame(i));
  expect(here->next(), 7);
  EXPECT_STREQ(there->closed().what(), "seen enough");
  EXPECT_EQ(there->frames_left(), 2U);
  here->closed();
}

TEST_P(ConnectionTest, MalformedBytesCloseTheConnection) {
  for (const std::size_t byte : {0U, 13U, 40U}) {
    auto [here, there] = pair();
    OutboundFrame bad = frame(1);
    bad.head.data()[byte] ^= std::byte{1};
    send(*here, std::move(bad));
    EXPECT_EQ(there->closed().kind(), ErrorKind::protocol_error);
    EXPECT_EQ(here->closed().kind(), ErrorKind::peer_lost);
  }
}

TEST_P(ConnectionTest, TheReceiversLimitsApply) {
  Limits small;
  small.message = 1000;
  listen(small);
  auto [here, there] = pair();
  send(*here, frame(1, {100}));
  expect(there->next(), 1, {100});
  send(*here, frame(2, {2000}));
  EXPECT_EQ(there->closed().kind(), ErrorKind::resource_exhausted);
  EXPECT_EQ(here->closed().kind(), ErrorKind::peer_lost);
}

TEST_P(ConnectionTest, TheTwoSidesShareNoAttachment) {
  auto [here, there] = pair();
  OutboundFrame out = frame(1, {100});
  const Buffer mine = out.attachments.front();
  Event sent;  // until then the connection reads the bytes
  out.sent = [&sent] { sent.set(); };
  send(*here, std::move(out));
  const InboundFrame got = there->next();
  sent.wait();
  std::memset(mine.data(), 0, mine.size());
  expect(got, 1, {100});
}

TEST_P(ConnectionTest, ConnectingWithoutAListenerIsUnavailable) {
  Handover<Result<std::shared_ptr<Connection>>> made;
  transport_->connect(Address::parse(GetParam().nobody()), ours_, {},
                      [&](Result<std::shared_ptr<Connection>> result) { made.give(std::move(result)); });
  expect_error([&] { return made.take().get(); }, ErrorKind::unavailable, Execution::not_sent);
}

TEST_P(ConnectionTest, AClosedListenerAcceptsNoConnectionAndItsConnectionsContinue) {
  auto [here, there] = pair();
  const Address address = listener_->address();
  listener_->close();
  listener_->close();
  Handover<Result<std::shared_ptr<Connection>>> made;
  transport_->connect(address, ours_, {},
                      [&](Result<std::shared_ptr<Connection>> result) { made.give(std::move(result)); });
  EXPECT_EQ(test::kind_of([&] { return made.take().get(); }), ErrorKind::unavailable);
  send(*here, frame(1));
  expect(there->next(), 1);
}

TEST_P(ConnectionTest, AnAddressHasOneListener) {
  EXPECT_THROW(
      (void)transport_->listen(listener_->address(), [this] { return theirs_; }, {}, false, nullptr), Error);
}

TEST_P(ConnectionTest, ManyConnectsAtOnceSucceed) {
  std::mutex mutex;
  std::vector<std::shared_ptr<Connection>> accepted;
  Event all;
  constexpr std::size_t n = 20;
  listener_.reset();
  listener_ = transport_->listen(
      Address::parse(GetParam().listen()), [this] { return theirs_; }, {}, false,
      [&](std::shared_ptr<Connection> connection) {
        std::lock_guard lock(mutex);
        accepted.push_back(std::move(connection));
        if (accepted.size() == n) all.set();
      });
  std::vector<std::shared_ptr<End>> here;
  for (std::size_t i = 0; i < n; ++i) here.push_back(start(connect()));
  all.wait();
  for (std::uint64_t i = 0; i < n; ++i) send(*here[i], frame(i));
  std::set<std::uint64_t> seen;
  for (const auto& connection : accepted) seen.insert(start(connection)->next().prefix.call_id);
  EXPECT_EQ(seen.size(), n);
}

}  // namespace
}  // namespace weft::rpc::connection_test

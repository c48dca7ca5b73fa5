// Heartbeats of an agent whose peer is hand-written, in virtual time. Heartbeats overtake queued frames, any
// received byte counts as a sign of life, and an agent that could not send its heartbeats reports this.
#include <weft/rpc/testing/simulation/sim_agent.h>
#include <weft/rpc/testing/simulation/sim_transport.h>

#include <weft/rpc/rpc.h>

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/messages.h"

namespace weft::test::sim_heartbeat_test {
namespace {

using namespace std::chrono_literals;
using rpc::FrameKind;

class Store {
 public:
  rpc::Buffer make(std::uint64_t bytes) {
    ++made;
    return rpc::Buffer::allocate(bytes);
  }
  std::size_t made = 0;
  using Service = rpc::Service<"store", rpc::Method<"make", &Store::make, rpc::non_blocking>>;
};

// The hand-written peer: it uses a connection, or sends bytes without one.
class Raw : public std::enable_shared_from_this<Raw> {
 public:
  explicit Raw(SimProcess& process) : loop_(process.make_loop()), transport_(process) {}

  void connect(bool greet) {
    loop_->post([self = shared_from_this(), greet] {
      self->transport_.connect(rpc::Address::parse("sim://bert"), self->loop_, {},
                               [self, greet](rpc::Result<std::shared_ptr<rpc::Connection>> made) {
                                 self->connection_ = std::move(made).get();
                                 if (!greet) {
                                   self->stream_ = self->connection_->take_stream();
                                   return;
                                 }
                                 self->connection_->start(std::make_shared<Ear>(self));
                                 self->connection_->send(hello());
                               });
    });
  }
  static rpc::OutboundFrame hello() { return rpc::OutgoingMessage::hello({.name = "raw", .incarnation = 7}); }
  static rpc::OutboundFrame make(std::uint64_t id, std::uint64_t bytes) {
    auto message = rpc::OutgoingMessage::request(1);
    rpc::Codec<std::uint64_t>::encode(message->argument(0), bytes);
    return message->seal_request({rpc::name_hash("store.make"), 1, 0}, id, 0);
  }
  void send(rpc::OutboundFrame frame) {
    loop_->post([self = shared_from_this(), frame = std::move(frame)]() mutable {
      self->connection_->send(std::move(frame));
    });
  }
  // Sends bytes without a connection.
  void send_bytes(std::vector<std::byte> bytes) {
    loop_->post([self = shared_from_this(), bytes = std::move(bytes)] {
      std::error_code error;
      const std::span<const std::byte> one(bytes);
      EXPECT_EQ(self->stream_->write(std::span(&one, 1), error), bytes.size()) << error.message();
    });
  }
  bool has_stream() const { return stream_ != nullptr; }

  std::size_t count(FrameKind kind) const {
    return static_cast<std::size_t>(std::count(kinds.begin(), kinds.end(), kind));
  }

  std::vector<FrameKind> kinds;
  bool closed = false;

 private:
  // The pointer is weak, because the connection keeps the observer and Raw keeps the connection.
  struct Ear final : rpc::ConnectionObserver {
    explicit Ear(std::weak_ptr<Raw> of) : raw(std::move(of)) {}
    void on_frame(rpc::InboundFrame&& frame) override {
      if (const auto told = raw.lock()) told->kinds.push_back(frame.prefix.kind);
    }
    void on_closed(const rpc::Error&) override {
      if (const auto told = raw.lock()) told->closed = true;
    }
    const std::weak_ptr<Raw> raw;
  };

  const std::shared_ptr<SimLoop> loop_;
  SimTransport transport_;
  std::shared_ptr<rpc::Connection> connection_;
  std::unique_ptr<rpc::ByteStream> stream_;
};

// No message is lost, split or delayed, so that the counts depend on the agent alone.
void calm(SimWorld& world, std::size_t window) {
  SimWeather& weather = world.network().weather();
  weather.repeats = weather.short_io = weather.false_calls = 0;
  weather.least_window = weather.max_window = window;
  world.pace().stalls = 0;
}

Raw& connected(SimWorld& world, bool greet = true) {
  SimProcess& process = world.start("raw");
  Raw& raw = process.keep(std::make_shared<Raw>(process));
  raw.connect(greet);
  return raw;
}

// 64 MiB are queued to a peer whose window is 64 KiB. Between its ping and the pong it reads what that window
// held and the rest of one answer, and not the others.
TEST(SimHeartbeat, APongOvertakesABacklog) {
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    SimWorld world(seed);
    calm(world, 64 << 10);
    rpc::Agent& bert = start_agent(world.start("bert"), {.heartbeat = {0s, 0s}});
    const auto store = std::make_shared<Store>();
    bert.serve(store);
    Raw& raw = connected(world);
    ASSERT_TRUE(world.run_until([&] { return raw.count(FrameKind::hello) == 1; }, 1min));
    for (std::uint64_t id = 1; id <= 64; ++id) raw.send(Raw::make(id, 1 << 20));
    ASSERT_TRUE(world.run_until([&] { return store->made == 64; }, 1min));
    const std::size_t before = raw.count(FrameKind::reply);
    ASSERT_LT(before, 8U) << "the backlog is there";
    for (std::uint64_t id = 1; id <= 3; ++id) raw.send(rpc::OutgoingMessage::plain(FrameKind::ping, id));
    ASSERT_TRUE(world.run_until([&] { return raw.count(FrameKind::pong) == 1; }, 1min));
    EXPECT_LE(raw.count(FrameKind::reply), before + 2) << "seed " << seed;
    ASSERT_TRUE(world.run_until([&] { return raw.count(FrameKind::reply) == 64; }, 10min));
    EXPECT_GE(raw.count(FrameKind::pong), 1U);
    EXPECT_LE(raw.count(FrameKind::pong), 3U) << "one that waits to leave answers the pings after it";
  }
}

// A frame that takes ten times the timeout to arrive, a byte at a time.
TEST(SimHeartbeat, EachByteOfAnUnfinishedFrameIsASignOfLife) {
  SimWorld world(1);
  calm(world, 64 << 10);
  rpc::Agent& bert = start_agent(world.start("bert"), {.heartbeat = {.interval = 1s, .timeout = 5s}});
  const auto store = std::make_shared<Store>();
  bert.serve(store);
  Raw& raw = connected(world, false);
  ASSERT_TRUE(world.run_until([&] { return raw.has_stream(); }, 1min));
  raw.send_bytes(bytes_of(Raw::hello()));
  ASSERT_TRUE(world.run_until([&] { return bert.counts().connections == 1; }, 1min));
  auto request = bytes_of(Raw::make(1, 10));
  ASSERT_GT(request.size(), 60U);
  for (std::size_t i = 0; i < 50; ++i) {
    raw.send_bytes({request[i]});
    world.run_for(1s);
    ASSERT_EQ(bert.counts().connections, 1U) << "after " << i << " s";
  }
  EXPECT_EQ(store->made, 0U) << "the request is not complete yet";
  EXPECT_EQ(bert.counts().peers_silent, 0U);
  world.run_for(10s);
  EXPECT_EQ(bert.counts().connections, 0U) << "and then nothing came any more";
  EXPECT_EQ(bert.counts().peers_silent, 1U);
}

TEST(SimHeartbeat, AnAgentThatCouldNotSendHeartbeatsLogsIt) {
  SimWorld world(1);
  calm(world, 64 << 10);
  std::vector<std::string> said;
  SimProcess& process = world.start("bert");
  rpc::AgentOptions options{.heartbeat = {.interval = 1s, .timeout = 30s}};
  options.log = [&said](const rpc::LogRecord& record) {
    if (record.level == rpc::LogLevel::warning) said.emplace_back(record.message);
  };
  start_agent(process, std::move(options));
  rpc::Agent& anna = start_agent(world.start("anna"), {.heartbeat = {.interval = 1s, .timeout = 30s}});
  rpc::Agent& carl = start_agent(world.start("carl"), {.heartbeat = {.interval = 1s, .timeout = 30s}});
  world.got(anna.connect("sim://bert").ready());
  world.got(carl.connect("sim://bert").ready());
  world.run_for(1min);
  EXPECT_TRUE(said.empty());
  process.stall(10s);
  world.run_for(1min);
  ASSERT_EQ(said.size(), 1U) << "once, for all connections";
  EXPECT_NE(said.front().find("a loop sent its heartbeats"), std::string::npos) << said.front();
  EXPECT_EQ(anna.counts().connections, 1U);
}

TEST(SimHeartbeat, ACompletelySilentPeerIsClosedAfterTheHandshakeTimeout) {
  SimWorld world(1);
  calm(world, 64 << 10);
  std::vector<std::string> said;
  rpc::AgentOptions options{.handshake_timeout = 10s};
  options.log = [&said](const rpc::LogRecord& record) {
    if (record.level == rpc::LogLevel::warning) said.emplace_back(record.message);
  };
  SimProcess& process = world.start("bert");
  rpc::Agent& bert = start_agent(process, std::move(options));
  const auto store = std::make_shared<Store>();
  bert.serve(store);
  Raw& raw = connected(world, false);
  ASSERT_TRUE(world.run_until([&] { return raw.has_stream(); }, 1min));
  world.run_for(9s);
  EXPECT_EQ(world.network().open_streams(process), 1U);
  EXPECT_EQ(bert.counts().connections_refused, 0U);
  world.run_for(2s);
  EXPECT_EQ(world.network().open_streams(process), 0U);
  EXPECT_EQ(bert.counts().connections_refused, 1U);
  ASSERT_EQ(said.size(), 1U);
  EXPECT_NE(said.front().find("the peer did not finish the handshake"), std::string::npos) << said.front();
  EXPECT_EQ(store->made, 0U);
}

}  // namespace
}  // namespace weft::test::sim_heartbeat_test

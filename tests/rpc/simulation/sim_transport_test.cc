// Connects in a simulated world, and frames over the resulting connections, under all faults.
#include <weft/rpc/testing/simulation/sim_transport.h>

#include <weft/rpc/testing/simulation/sim_seeds.h>
#include <weft/rpc/wire/message.h>

#include <cstring>

#include "tests/rpc/simulation/sim_support.h"
#include "tests/support/errors.h"

namespace weft::test::sim_transport_test {
namespace {

using namespace std::chrono_literals;
using rpc::Address;
using rpc::Connection;
using rpc::ErrorKind;

// A process with a transport. Keeps its connections, and the errors of failed connects.
class Host {
 public:
  Host(SimWorld& world, const std::string& name)
      : process(world.start(name)),
        loop(process.make_loop()),
        transport(std::make_shared<SimTransport>(process)) {}

  void listen(const std::string& address) {
    listener = transport->listen(
        Address::parse(address), [this] { return loop; }, rpc::Limits{}, false,
        [this](std::shared_ptr<Connection> connection) { accepted.push_back(std::move(connection)); });
  }
  void connect(const std::string& address) {
    loop->post([this, address] {
      transport->connect(Address::parse(address), loop, rpc::Limits{},
                         [this](rpc::Result<std::shared_ptr<Connection>> made) {
                           if (made.ok()) {
                             connected.push_back(std::move(made).get());
                           } else {
                             failures.push_back(*test::error_of([&] { return std::move(made).get(); }));
                           }
                         });
    });
  }

  SimProcess& process;
  std::shared_ptr<SimLoop> loop;
  std::shared_ptr<SimTransport> transport;
  std::unique_ptr<rpc::Listener> listener;
  std::vector<std::shared_ptr<Connection>> connected, accepted;
  std::vector<rpc::Error> failures;
};

TEST(SimTransport, ConnectsToAListener) {
  SimWorld world(1);
  Host anna(world, "anna"), bert(world, "bert");
  bert.listen("sim://here");
  EXPECT_EQ(bert.listener->address().text(), "sim://here");
  const auto start = world.now();
  anna.connect("sim://here");
  anna.connect("sim://elsewhere");
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_GT(world.now(), start);
  ASSERT_EQ(anna.connected.size(), 1U);
  ASSERT_EQ(bert.accepted.size(), 1U);
  EXPECT_EQ(anna.connected[0]->loop(), anna.loop);
  EXPECT_EQ(bert.accepted[0]->loop(), bert.loop);
  EXPECT_EQ(anna.connected[0]->describe(), "sim anna -> bert #1");
  ASSERT_EQ(anna.failures.size(), 1U);
  EXPECT_EQ(anna.failures[0].kind(), ErrorKind::unavailable);
  EXPECT_EQ(anna.failures[0].execution(), rpc::Execution::not_sent);
}

TEST(SimTransport, RefusesWhatItCannotDo) {
  SimWorld world(1);
  Host anna(world, "anna"), bert(world, "bert");
  bert.listen("sim://here");
  EXPECT_EQ(kind_of([&] { anna.listen("sim://here"); }), ErrorKind::unavailable);
  EXPECT_EQ(kind_of([&] { anna.listen("inproc://here"); }), ErrorKind::invalid_argument);
  EXPECT_EQ(kind_of([&] {
              anna.transport->connect(Address::parse("tcp://localhost:1"), anna.loop, rpc::Limits{},
                                      [](auto) {});
            }),
            ErrorKind::invalid_argument);
}

TEST(SimTransport, NoConnectSucceedsAfterTheListenerClosed) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SimWorld world(seed);
    Host anna(world, "anna"), bert(world, "bert");
    bert.listen("sim://here");
    anna.connect("sim://here");
    world.run_for(world.random().up_to(1ms));
    bert.listener->close();
    bert.listener->close();
    const std::size_t before = anna.connected.size();
    anna.connect("sim://here");
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_EQ(anna.connected.size() + anna.failures.size(), 2U);
    EXPECT_GE(anna.failures.size(), 1U);
    EXPECT_LE(anna.connected.size(), before + 1);  // one that was accepted before
    EXPECT_EQ(bert.accepted.size(), anna.connected.size());
  }
}

TEST(SimTransport, AConnectWaitsForTheEndOfAPartition) {
  for (const bool heals : {true, false}) {
    for (const bool request : {true, false}) {
      SimWorld world(1);
      Host anna(world, "anna"), bert(world, "bert");
      bert.listen("sim://here");
      request ? world.network().cut("anna", "bert") : world.network().cut("bert", "anna");
      anna.connect("sim://here");
      world.run_for(5s);
      EXPECT_TRUE(anna.connected.empty() && anna.failures.empty());
      if (heals) world.network().heal();
      ASSERT_TRUE(world.run_until_idle());
      EXPECT_EQ(anna.connected.size(), heals ? 1U : 0U);
      EXPECT_EQ(anna.failures.size(), heals ? 0U : 1U);
    }
  }
}

TEST(SimTransport, ACrashedHostDoesNotAnswerUntilItRestarts) {
  for (const auto how : {SimCrash::process, SimCrash::host}) {
    SimWorld world(1);
    Host anna(world, "anna");
    auto bert = std::make_unique<Host>(world, "bert");
    bert->listen("sim://here");
    world.crash(bert->process, how);
    anna.connect("sim://here");
    world.run_for(5s);
    EXPECT_EQ(anna.failures.size(), how == SimCrash::process ? 1U : 0U);
    Host again(world, "bert");
    again.listen("sim://here");
    anna.connect("sim://here");
    ASSERT_TRUE(world.run_until_idle());
    EXPECT_EQ(anna.connected.size(), how == SimCrash::process ? 1U : 2U);
  }
}

TEST(SimTransport, ShutDownFailsConnectsInFlight) {
  SimWorld world(1);
  Host anna(world, "anna"), bert(world, "bert");
  bert.listen("sim://here");
  world.network().partition({"anna"}, {"bert"});
  anna.connect("sim://here");
  world.run_for(1s);
  anna.transport->shut_down();
  world.run_for(1ms);
  ASSERT_EQ(anna.failures.size(), 1U);
  world.network().heal();
  ASSERT_TRUE(world.run_until_idle());
  EXPECT_EQ(anna.failures.size(), 1U);
  EXPECT_TRUE(anna.connected.empty());
}

TEST(SimTransport, TheWeatherRefusesSomeConnects) {
  std::size_t failed = 0;
  for (std::uint64_t seed = 1; seed <= 100; ++seed) {
    SimWorld world(seed, {.weather = {.refusals = 300}});
    Host anna(world, "anna"), bert(world, "bert");
    bert.listen("sim://here");
    anna.connect("sim://here");
    ASSERT_TRUE(world.run_until_idle());
    failed += anna.failures.size();
  }
  EXPECT_GT(failed, 10U);
  EXPECT_LT(failed, 60U);
}

// --- Frames ---

// A request with its number, a text and attachments of random sizes, and a checksum over all of them.
rpc::OutboundFrame numbered(SimRandom& random, std::uint64_t number) {
  auto message = rpc::OutgoingMessage::request(2);
  message->argument(0).set_text(some_text(random, random.spread(0, 3000)));
  auto bytes = rpc::Buffer::allocate(static_cast<std::size_t>(random.spread(100, 20'000)));
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes.data()[i] = static_cast<std::byte>(number * 31 + i);
  message->argument(1).set_attachment(bytes);
  return message->seal_request({1, 2, 0}, number, 0);
}

bool is_numbered(const rpc::InboundFrame& frame) {
  if (frame.attachments.size() != 1) return false;
  const auto bytes = frame.attachments[0].bytes();
  for (std::size_t i = 0; i < bytes.size(); ++i)
    if (bytes[i] != static_cast<std::byte>(frame.prefix.call_id * 31 + i)) return false;
  return true;
}

// One side of a connection: sends numbered frames, and checks that the other's come in their order.
class Side final : public rpc::ConnectionObserver, public std::enable_shared_from_this<Side> {
 public:
  Side(SimWorld& world, std::shared_ptr<Connection> connection, std::uint64_t frames, std::uint64_t expected)
      : world_(world), connection_(std::move(connection)), frames_(frames), expected_(expected) {}

  void go() {
    connection_->start(shared_from_this());
    send();
  }
  void on_frame(rpc::InboundFrame&& frame) override {
    if (closed_) world_.violation("a frame after on_closed");
    if (frame.prefix.call_id != ++received_ || !is_numbered(frame)) world_.violation("a wrong frame");
    if (sent_ == frames_) finish();
  }
  void on_closed(const rpc::Error& reason) override {
    if (std::exchange(closed_, reason)) world_.violation("closed twice");
    connection_ = nullptr;
  }

  void release() { connection_ = nullptr; }

  std::uint64_t received() const { return received_; }
  std::uint64_t sent() const { return sent_; }
  std::uint64_t left() const { return left_; }
  const std::optional<rpc::Error>& closed() const { return closed_; }

 private:
  void send() {
    if (closed_) return;
    for (std::uint64_t n = world_.random().between(1, 3); n != 0 && sent_ != frames_; --n) {
      rpc::OutboundFrame frame = numbered(world_.random(), ++sent_);
      frame.sent = [self = shared_from_this()] { ++self->left_; };
      connection_->send(std::move(frame));
    }
    if (sent_ == frames_) return finish();
    connection_->loop()->schedule(connection_->loop()->now() + world_.random().up_to(2ms),
                                  [self = shared_from_this()] { self->send(); });
  }

  void finish() {
    if (received_ == expected_ && !closed_) connection_->finish(rpc::Error(ErrorKind::shut_down, "done"));
  }

  SimWorld& world_;
  std::shared_ptr<Connection> connection_;
  const std::uint64_t frames_, expected_;
  std::uint64_t sent_ = 0, left_ = 0, received_ = 0;
  std::optional<rpc::Error> closed_;
};

struct Frames {
  std::uint64_t received = 0, whole = 0;  // over all seeds
};

void exchange_frames(SimWorld& world, Frames& frames) {
  SimRandom& random = world.random();
  world.network().weather() = SimWeather::draw(random);
  struct State {
    State(SimWorld& w) : anna(w, "anna"), bert(w, "bert") {}
    ~State() {  // the side that crashed and its connection hold each other
      for (const auto& side : sides) side->release();
    }
    Host anna, bert;
    std::vector<std::shared_ptr<Side>> sides;
  };
  auto& state = world.keep(std::make_shared<State>(world));
  state.bert.listen("sim://bert");
  state.anna.connect("sim://bert");
  world.run_until([&] { return !state.anna.connected.empty() || !state.anna.failures.empty(); }, 1min);
  if (state.anna.connected.empty()) return;
  world.run_until([&] { return !state.bert.accepted.empty(); }, 1min);
  if (state.bert.accepted.empty()) return;
  const std::uint64_t from_anna = random.between(1, 10), from_bert = random.between(1, 10);
  state.sides = {std::make_shared<Side>(world, state.anna.connected[0], from_anna, from_bert),
                 std::make_shared<Side>(world, state.bert.accepted[0], from_bert, from_anna)};
  state.anna.loop->post([side = state.sides[0]] { side->go(); });
  state.bert.loop->post([side = state.sides[1]] { side->go(); });
  if (random.chance(300)) {
    world.after(random.up_to(5ms), [&] { world.network().partition({"anna"}, {"bert"}); });
    world.after(random.up_to(1s), [&] { world.network().heal(); });
  }
  const bool crash = random.chance(200);
  if (crash) world.after(random.up_to(5ms), [&] { world.crash(state.bert.process, SimCrash::process); });
  world.run_for(2s);
  world.network().heal();
  if (!world.run_until_idle()) world.violation("no rest");
  const Side& anna = *state.sides[0];
  const Side& bert = *state.sides[1];
  if (!anna.closed()) world.violation("anna has lost a connection and was not told");
  if (!crash && !bert.closed()) world.violation("bert has lost a connection and was not told");
  if (anna.received() > bert.sent() || bert.received() > anna.sent()) world.violation("a frame from nowhere");
  frames.received += anna.received() + bert.received();
  frames.whole += anna.received() == bert.sent() && bert.received() == anna.sent() ? 1 : 0;
}

TEST(SimFrames, ArriveWholeAndInOrderOrNotAtAll) {
  Frames frames;
  const SimReport report = for_each_seed({.count = 300, .test = "SimFrames.ArriveWholeAndInOrderOrNotAtAll"},
                                         [&](SimWorld& world) { exchange_frames(world, frames); });
  EXPECT_TRUE(report.ok()) << report.text;
  if (report.seeds != 300) return;
  EXPECT_GT(frames.received, 1000U);
  EXPECT_GT(frames.whole, 100U);
  EXPECT_LT(frames.whole, 280U);
}

}  // namespace
}  // namespace weft::test::sim_transport_test

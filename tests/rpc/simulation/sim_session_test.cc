// Calls survive the loss of connections: each call runs once, in the caller's order, until the death of its
// peer is detected.
#include <weft/rpc/endpoint/route.h>
#include <weft/rpc/endpoint/session.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/rpc.h>
#include <weft/rpc/testing/simulation/sim_agent.h>
#include <weft/rpc/testing/simulation/sim_seeds.h>

#include <numeric>

#include "tests/support/errors.h"
#include "tests/support/lost_connections.h"

namespace weft::test::sim_session_test {
namespace {

using namespace std::chrono_literals;
using rpc::ErrorKind;

// Notes the numbers of calls, and answers held calls when the test does.
class Book {
 public:
  std::int64_t note(std::int64_t number) {
    noted.push_back(number);
    return number;
  }
  rpc::Buffer page(std::int64_t number, std::uint64_t bytes) {
    noted.push_back(number);
    rpc::Buffer page = rpc::Buffer::allocate(bytes);
    std::fill(page.bytes().begin(), page.bytes().end(), static_cast<std::byte>(number));
    return page;
  }
  rpc::Future<std::int64_t> hold(rpc::CallContext& call, std::int64_t number) {
    noted.push_back(number);
    held = std::make_shared<rpc::Promise<std::int64_t>>();
    call.on_cancel([this, promise = held] {
      ++cancelled;
      promise->fail(rpc::Error(ErrorKind::cancelled, "the caller has cancelled the call"));
    });
    return held->future();
  }
  rpc::Task<std::int64_t> sum(rpc::Stream<std::int64_t> numbers) {
    std::int64_t sum = 0;
    while (const auto number = co_await numbers.next()) sum += *number;
    co_return sum;
  }

  using Service =
      rpc::Service<"book", rpc::Method<"note", &Book::note, rpc::non_blocking>,
                   rpc::Method<"page", &Book::page, rpc::non_blocking>,
                   rpc::Method<"hold", &Book::hold, rpc::non_blocking>, rpc::Method<"sum", &Book::sum>>;

  std::vector<std::int64_t> noted;
  std::shared_ptr<rpc::Promise<std::int64_t>> held;
  int cancelled = 0;
};

rpc::Stream<std::int64_t> count_to(std::int64_t last) {
  for (std::int64_t number = 1; number <= last; ++number) co_yield number;
}

class Sessions : public testing::Test {
 protected:
  explicit Sessions(SimOptions options = {}) : world_(1, options) {}

  rpc::Agent& start(const std::string& name, rpc::AgentOptions options = {}) {
    if (options.heartbeat.interval == rpc::Heartbeat{}.interval) options.heartbeat = {0s, 20s};
    rpc::Agent& agent = start_agent(world_.start(name), std::move(options));
    agent.serve(book_);
    return agent;
  }
  void reset() { world_.network().reset("anna", "bert"); }
  bool noted(std::size_t calls) {
    return world_.run_until([&] { return book_->noted.size() == calls; }, 1min);
  }

  SimWorld world_;
  std::shared_ptr<Book> book_ = std::make_shared<Book>();
};

TEST_F(Sessions, ACallAndItsReplySurviveTheLossOfTheConnection) {
  rpc::Agent& anna = start("anna");
  start("bert");
  const rpc::Peer bert = anna.connect("sim://bert");
  world_.got(bert.ready());
  auto call = bert.call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  reset();
  world_.run_for(100ms);
  book_->held->complete(rpc::Result<std::int64_t>(70));
  EXPECT_EQ(world_.got(std::move(call)), 70);
  EXPECT_EQ(book_->noted, std::vector<std::int64_t>{7}) << "it ran once";
  EXPECT_GE(anna.counts().connections_made, 2U);
  EXPECT_TRUE(world_.run_until_idle());
}

TEST_F(Sessions, ACallThatFailsFastFailsWithItsConnection) {
  rpc::Agent& anna = start("anna");
  start("bert");
  const rpc::Peer bert = anna.connect("sim://bert");
  world_.got(bert.call<&Book::note>(1));
  auto call = bert.with({.fail_fast = true}).call<&Book::hold>(7);
  ASSERT_TRUE(noted(2));
  reset();
  expect_error([&] { world_.got(std::move(call)); }, ErrorKind::peer_lost, rpc::Execution::maybe_executed);
  EXPECT_TRUE(world_.run_until([&] { return book_->cancelled == 1; }, 30s)) << "when it is reached again";
}

TEST_F(Sessions, ACallThatFailsFastAndWaitsForCreditAlsoFails) {
  rpc::Agent& anna = start("anna");
  rpc::AgentOptions narrow;
  narrow.limits.calls = 1;
  start("bert", narrow);
  const rpc::Peer bert = anna.connect("sim://bert");
  auto first = bert.call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  auto second = bert.with({.fail_fast = true}).call<&Book::note>(8);
  reset();
  expect_error([&] { world_.got(std::move(second)); }, ErrorKind::unavailable, rpc::Execution::not_sent);
  book_->held->complete(rpc::Result<std::int64_t>(70));
  EXPECT_EQ(world_.got(std::move(first)), 70);
}

TEST_F(Sessions, ACallOnTheLoopDoesNotOvertakeAnEarlierCall) {
  rpc::Agent& anna = start("anna");
  start("bert");
  const rpc::Peer bert = anna.connect("sim://bert");
  world_.got(bert.ready());
  rpc::Future<std::int64_t> first, second;
  anna.core()->loops().front()->post([&] { second = bert.call<&Book::note>(2); });
  first = bert.call<&Book::note>(1);
  EXPECT_EQ(world_.got(std::move(first)), 1);
  EXPECT_EQ(world_.got(std::move(second)), 2);
  EXPECT_EQ(book_->noted, (std::vector<std::int64_t>{1, 2}));
}

// Resets the connection and waits until the caller has none.
void lose_connection(SimWorld& world, rpc::Agent& from, const rpc::AgentId& to) {
  world.network().reset(from.name(), to.name);
  ASSERT_TRUE(world.run_until([&] { return !from.core()->sessions().is_connected(to); }, 10s));
  world.network().partition({from.name()}, {to.name});
}

TEST_F(Sessions, AReplyThatIsReadyDuringAnAbsenceIsSentAfterIt) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  auto call = anna.connect("sim://bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  lose_connection(world_, anna, bert.id());
  EXPECT_TRUE(anna.core()->sessions().knows(bert.id()));
  book_->held->complete(rpc::Result<std::int64_t>(70));
  world_.run_for(5s);
  EXPECT_FALSE(call.ready());
  world_.network().heal();
  EXPECT_EQ(world_.got(std::move(call)), 70);
  EXPECT_EQ(book_->noted, std::vector<std::int64_t>{7});
  EXPECT_TRUE(world_.run_until_idle());
  EXPECT_EQ(anna.counts().waiting + bert.counts().serving, 0U);
}

TEST_F(Sessions, CallsMadeDuringAnAbsenceWaitForItsEnd) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  const rpc::Peer peer = anna.connect("sim://bert");
  world_.got(peer.call<&Book::note>(0));
  lose_connection(world_, anna, bert.id());
  std::vector<rpc::Future<std::int64_t>> calls;
  for (std::int64_t i = 1; i <= 20; ++i) calls.push_back(peer.call<&Book::note>(i));
  EXPECT_EQ(kind_of([&] { return world_.got(peer.with({.timeout = 1s}).call<&Book::note>(99)); }),
            ErrorKind::deadline_exceeded);
  EXPECT_EQ(kind_of([&] { return world_.got(peer.with({.fail_fast = true}).call<&Book::note>(98)); }),
            ErrorKind::unavailable);
  world_.network().heal();
  for (std::int64_t i = 1; i <= 20; ++i) EXPECT_EQ(world_.got(std::move(calls[i - 1])), i);
  std::vector<std::int64_t> order(21);
  std::iota(order.begin(), order.end(), 0);
  EXPECT_EQ(book_->noted, order);
}

TEST_F(Sessions, AnAbsenceEndsAtTheHeartbeatTimeout) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  auto call = anna.connect("sim://bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  lose_connection(world_, anna, bert.id());
  const auto begin = world_.now();
  expect_error([&] { world_.got(std::move(call)); }, ErrorKind::peer_lost, rpc::Execution::maybe_executed,
               "did not connect again within 20");
  EXPECT_GE(world_.now() - begin, 19s);
  EXPECT_LE(world_.now() - begin, 21s);
  EXPECT_FALSE(anna.core()->sessions().knows(bert.id()));
  // The other side has timed out, too. Calls work again, in a new session.
  world_.network().heal();
  EXPECT_EQ(book_->cancelled, 1);
  EXPECT_EQ(world_.got(anna.connect("sim://bert").with({.wait_for_ready = true}).call<&Book::note>(8)), 8);
  EXPECT_TRUE(anna.core()->sessions().is_gone(bert.id())) << "for the layers";
  EXPECT_TRUE(bert.core()->sessions().is_gone(anna.id()));
  EXPECT_EQ(world_.got(anna.connect("sim://bert").call<&Book::sum>(count_to(4))), 10);
}

TEST_F(Sessions, ACallThatWaitsUntilItsPeerIsReadyOutlivesItsSession) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  const rpc::Peer peer = anna.connect("sim://bert").with({.wait_for_ready = true});
  world_.got(peer.call<&Book::note>(1));
  lose_connection(world_, anna, bert.id());
  auto call = peer.call<&Book::note>(2);
  world_.run_for(1s);
  anna.core()->lose(bert.id(), rpc::Error(ErrorKind::peer_lost, "the test knows it"));
  world_.network().heal();
  EXPECT_EQ(world_.got(std::move(call)), 2);
}

// The peer whose timeout has passed notifies the peer that returns.
TEST_F(Sessions, APeerThatReturnsAfterTheTimeoutGetsTheError) {
  rpc::Agent& anna = start("anna", {.heartbeat = {0s, 60s}});
  rpc::Agent& bert = start("bert", {.heartbeat = {0s, 2s}});
  auto call = anna.connect("sim://bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  lose_connection(world_, anna, bert.id());
  world_.run_for(200ms);
  world_.network().heal();  // the reset reaches the other side
  world_.network().partition({"anna"}, {"bert"});
  world_.run_for(10s);
  world_.network().heal();
  ASSERT_EQ(book_->cancelled, 1) << "the peer has given the caller up";
  expect_error([&] { world_.got(std::move(call)); }, ErrorKind::lease_lost);
}

TEST_F(Sessions, TheExitOfAProcessIsDetectedAtOnce) {
  rpc::Agent& anna = start("anna");
  start("bert");
  auto call = anna.connect("sim://bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  const auto begin = world_.now();
  world_.crash(*world_.find("bert"), SimCrash::process);  // the host of the process refuses connections
  EXPECT_EQ(kind_of([&] { return world_.got(std::move(call)); }), ErrorKind::peer_lost);
  EXPECT_LE(world_.now() - begin, 1s);
}

TEST_F(Sessions, OneRefusedConnectionProvesNothing) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  const rpc::Peer peer = anna.connect("sim://bert");
  auto call = peer.call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  lose_connection(world_, anna, bert.id());
  world_.network().weather().refusals = 1000;
  world_.network().heal();
  ASSERT_TRUE(
      world_.run_until([&] { return peer.calls().route()->reach() == rpc::Route::Reach::failing; }, 10s));
  world_.network().weather().refusals = 0;
  ASSERT_TRUE(world_.run_until([&] { return anna.core()->sessions().is_connected(bert.id()); }, 10s));
  book_->held->complete(rpc::Result<std::int64_t>(70));
  EXPECT_EQ(world_.got(std::move(call)), 70);
}

TEST_F(Sessions, ANewIncarnationEndsTheSessionWithTheOldOne) {
  rpc::Agent& anna = start("anna", {.heartbeat = {0s, 1h}});
  rpc::Agent& bert = start("bert", {.heartbeat = {0s, 1h}});
  auto call = anna.connect("sim://bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  lose_connection(world_, anna, bert.id());
  world_.crash(*world_.find("bert"), SimCrash::host);
  world_.run_for(1s);
  EXPECT_FALSE(call.ready()) << "a host that is silent proves nothing";
  rpc::Agent& next = start("bert", {.heartbeat = {0s, 1h}});
  world_.network().heal();
  const auto begin = world_.now();
  world_.got(next.connect("sim://anna").ready());
  expect_error([&] { world_.got(std::move(call)); }, ErrorKind::peer_lost, "has replaced it");
  EXPECT_LE(world_.now() - begin, 10s);
}

TEST_F(Sessions, AnAgentThatEndsNotifiesItsPeers) {
  rpc::Agent& anna = start("anna");
  start("bert");
  auto call = anna.connect("sim://bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  const auto begin = world_.now();
  world_.find("bert")->destroy_kept();
  EXPECT_EQ(kind_of([&] { return world_.got(std::move(call)); }), ErrorKind::peer_lost);
  EXPECT_LE(world_.now() - begin, 1s);
}

TEST_F(Sessions, ACancellationReachesTheCalleeAfterAnAbsence) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  auto call = anna.connect("sim://bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  lose_connection(world_, anna, bert.id());
  call.cancel();
  EXPECT_EQ(kind_of([&] { return world_.got(std::move(call)); }), ErrorKind::cancelled);
  EXPECT_EQ(book_->cancelled, 0);
  world_.network().heal();
  EXPECT_TRUE(world_.run_until([&] { return book_->cancelled == 1; }, 30s));
  EXPECT_TRUE(world_.run_until_idle());
  EXPECT_EQ(bert.counts().serving, 0U);
}

// Its connection is lost at the same time.
TEST_F(Sessions, APeerThatTheJobHasDeclaredDeadIsNotAwaited) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  auto call = anna.connect("sim://bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(1));
  lose_connections(anna);
  anna.core()->loops().front()->post([&] { anna.core()->forget(bert.id(), "the test says so"); });
  const auto begin = world_.now();
  EXPECT_TRUE(test::error_of([&] { world_.got(std::move(call)); }));
  EXPECT_LE(world_.now() - begin, 1s);
}

// The lost frame may be the first one that the peer sent.
TEST_F(Sessions, AnAbsentPeerIsAwaitedEvenIfNoFrameOfItsSessionArrived) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  const rpc::Peer peer = anna.connect("sim://bert");
  world_.got(peer.ready());
  auto call = peer.call<&Book::note>(1);
  reset();
  EXPECT_EQ(world_.got(std::move(call)), 1);
  EXPECT_NE(bert.core()->sessions().find(anna.id()), nullptr);
}

TEST_F(Sessions, AcknowledgedFramesAreReleased) {
  rpc::Agent& anna = start("anna");
  rpc::Agent& bert = start("bert");
  const rpc::Peer peer = anna.connect("sim://bert");
  EXPECT_EQ(world_.got(peer.call<&Book::page>(3, 100'000)).size(), 100'000U);
  reset();  // before the acknowledgement is due
  EXPECT_EQ(world_.got(peer.call<&Book::page>(4, 100'000)).size(), 100'000U);
  world_.run_for(1s);
  EXPECT_EQ(bert.core()->sessions().all().front()->kept_bytes(), 0U);
  EXPECT_EQ(anna.core()->sessions().all().front()->kept_bytes(), 0U);
}

TEST_F(Sessions, AHeartbeatAcknowledgesTheLastFrames) {
  rpc::Agent& anna = start("anna", {.heartbeat = {1s, 20s}});
  rpc::Agent& bert = start("bert");
  world_.got(anna.connect("sim://bert").call<&Book::note>(1));
  const auto session = bert.core()->sessions().find(anna.id());
  EXPECT_GT(session->kept_bytes(), 0U) << "the small reply";
  EXPECT_TRUE(world_.run_until([&] { return session->kept_bytes() == 0; }, 2s));
}

// Both sides call each other, each result is checked, and connections are reset at any time.
TEST_F(Sessions, UnacknowledgedRepliesExceedNoLimit) {
  rpc::Agent& anna = start("anna");
  rpc::AgentOptions narrow;
  narrow.limits.in_flight = 150 << 10;
  start("bert", narrow);
  const rpc::Peer bert = anna.connect("sim://bert");
  for (std::int64_t number = 0; number < 50; ++number)
    ASSERT_EQ(world_.got(bert.call<&Book::page>(number, std::uint64_t{100 << 10})).size(), 100U << 10);
}

// Both agents dial each other at about the same time, by name and by address, and make calls at once. No call
// fails or is late for its order, and one connection is left.
TEST(SessionSimulation, SimultaneousDialsLeaveOneConnection) {
  const auto report = for_each_seed(
      {.count = 300, .test = "SessionSimulation.SimultaneousDialsLeaveOneConnection"}, [](SimWorld& world) {
        SimRandom& random = world.random();
        world.network().weather() = SimWeather::draw(random);
        world.network().weather().refusals = world.network().weather().resets = 0;
        std::map<std::string, std::shared_ptr<Book>> books;
        std::map<std::string, rpc::Agent*> agents;
        for (const char* name : {"anna", "bert"}) {
          agents[name] =
              &start_agent(world.start(name), {.loops = 1 + random.below(3), .heartbeat = {0s, 10min}});
          agents[name]->serve(books[name] = std::make_shared<Book>());
        }
        std::vector<rpc::Future<std::int64_t>> calls;
        std::map<std::string, std::int64_t> told;
        const auto call = [&](const std::string& from, const std::string& to) {
          const rpc::Peer peer = agents[from]->connect("sim://" + to);
          for (std::uint64_t i = random.between(1, 5); i != 0; --i)
            calls.push_back(peer.call<&Book::note>(told[to]++));
        };
        for (std::uint64_t i = random.between(2, 8); i != 0; --i) {
          random.coin() ? call("anna", "bert") : call("bert", "anna");
          world.run_for(random.up_to(2ms));
        }
        for (auto& one : calls) world.got(std::move(one));
        if (!world.run_until_idle(2h)) world.violation("does not come to rest");
        for (const auto& [name, book] : books) {
          std::vector<std::int64_t> order(static_cast<std::size_t>(told[name]));
          std::iota(order.begin(), order.end(), 0);
          if (book->noted != order) world.violation(name + " noted the calls in another order");
          if (agents[name]->counts().connections != 1)
            world.violation(name + " has " + std::to_string(agents[name]->counts().connections) +
                            " connections");
        }
      });
  EXPECT_TRUE(report.ok()) << report.text;
}

TEST(SessionSimulation, EveryCallRunsOnceInItsOrder) {
  const auto report = for_each_seed(
      {.count = 300, .test = "SessionSimulation.EveryCallRunsOnceInItsOrder"}, [](SimWorld& world) {
        SimRandom& random = world.random();
        world.network().weather() = SimWeather::draw(random);
        world.network().weather().refusals = 0;
        std::map<std::string, std::shared_ptr<Book>> books;
        std::map<std::string, rpc::Agent*> agents;
        for (const char* name : {"anna", "bert"}) {
          rpc::AgentOptions options{.loops = 1 + random.below(2), .heartbeat = {0s, 10min}};
          if (random.coin()) options.limits.calls = static_cast<std::uint32_t>(1 + random.below(8));
          agents[name] = &start_agent(world.start(name), options);
          agents[name]->serve(books[name] = std::make_shared<Book>());
        }
        // A session starts with a connection.
        const std::uint64_t resets = std::exchange(world.network().weather().resets, 0);
        world.got(agents["anna"]->connect("sim://bert").ready());
        world.got(agents["bert"]->connect("sim://anna").ready());
        world.network().weather().resets = resets;
        std::map<std::string, std::vector<rpc::Future<std::int64_t>>> notes;
        std::map<std::string, std::vector<rpc::Future<rpc::Buffer>>> pages;
        std::map<std::string, std::int64_t> told;
        for (std::uint64_t i = random.between(20, 200); i != 0; --i) {
          const bool first = random.coin();
          const std::string from = first ? "anna" : "bert", to = first ? "bert" : "anna";
          const rpc::Peer peer = agents[from]->connect("sim://" + to);
          switch (random.below(4)) {
            case 0:
              notes[to].push_back(peer.call<&Book::note>(told[to]++));
              break;
            case 1:
              pages[to].push_back(peer.call<&Book::page>(told[to]++, random.spread(1, 100'000)));
              break;
            case 2:
              peer.notify<&Book::note>(told[to]++);
              break;
            default:
              world.network().reset_any();
          }
          world.run_for(random.up_to(5ms));
        }
        world.network().calm();
        for (auto& [to, calls] : notes)
          for (auto& call : calls) world.got(std::move(call));
        for (auto& [to, calls] : pages)
          for (auto& call : calls) world.got(std::move(call));
        if (!world.run_until_idle(2h)) world.violation("does not come to rest");
        for (const auto& [name, book] : books) {
          std::vector<std::int64_t> order(static_cast<std::size_t>(told[name]));
          std::iota(order.begin(), order.end(), 0);
          if (book->noted == order) continue;
          std::string text = name + " noted";
          for (const std::int64_t number : book->noted) text += " " + std::to_string(number);
          world.violation(text);
        }
        // The numbers that Job::quiesce() compares.
        const auto anna = agents["anna"]->core()->sessions().requests_with({"bert"});
        const auto bert = agents["bert"]->core()->sessions().requests_with({"anna"});
        if (anna.sent != bert.received || bert.sent != anna.received)
          world.violation("requests that were sent differ in number from those that were received");
        for (const auto& [name, agent] : agents)
          if (agent->counts().waiting + agent->counts().serving != 0) world.violation(name + " keeps calls");
      });
  EXPECT_TRUE(report.ok()) << report.text;
}

}  // namespace
}  // namespace weft::test::sim_session_test

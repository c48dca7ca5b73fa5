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
  // Starts anna and bert. Returns bert as anna sees him.
  rpc::Peer start_both(rpc::AgentOptions of_anna = {}, rpc::AgentOptions of_bert = {}) {
    anna_ = &start("anna", std::move(of_anna));
    bert_ = &start("bert", std::move(of_bert));
    return anna_->connect("sim://bert");
  }
  // Starts anna and bert. Returns a call of anna that bert holds.
  rpc::Future<std::int64_t> held_call(rpc::AgentOptions of_anna = {}, rpc::AgentOptions of_bert = {}) {
    auto call = start_both(std::move(of_anna), std::move(of_bert)).call<&Book::hold>(7);
    if (!noted(1)) throw std::runtime_error("bert does not hold the call");
    return call;
  }
  void answer_held() { book_->held->complete(rpc::Result<std::int64_t>(70)); }
  void reset() { world_.network().reset("anna", "bert"); }
  // Resets the connection, waits until anna has none, and prevents another one.
  void lose_connection() {
    reset();
    ASSERT_TRUE(world_.run_until([&] { return !anna_->core()->sessions().is_connected(bert_->id()); }, 10s));
    world_.network().partition({"anna"}, {"bert"});
  }
  // A call survives a reset while the agent drains.
  void survives_while_draining(const std::string& name) {
    auto call = held_call();
    auto drained = (name == "anna" ? anna_ : bert_)->drain(1min);
    world_.run_for(100ms);
    reset();
    world_.run_for(1s);
    EXPECT_FALSE(call.ready());
    EXPECT_FALSE(drained.ready());
    answer_held();
    EXPECT_EQ(world_.got(std::move(call)), 70);
    world_.got(std::move(drained));
    EXPECT_EQ(book_->noted, std::vector<std::int64_t>{7}) << "it ran once";
  }
  // Answers the held call, ends the drain of bert and his process, and expects that his next incarnation
  // serves `later`, and nothing else than these two calls ran.
  void serves_later(rpc::Future<std::int64_t> call, rpc::Future<void> drained,
                    rpc::Future<std::int64_t> later) {
    answer_held();
    EXPECT_EQ(world_.got(std::move(call)), 70);
    world_.got(std::move(drained));
    bert_->shut_down();
    world_.crash(*world_.find("bert"), SimCrash::process);
    bert_ = &start("bert");
    EXPECT_EQ(world_.got(std::move(later)), 9);
    EXPECT_EQ(book_->noted, (std::vector<std::int64_t>{7, 9}));
  }
  bool noted(std::size_t calls) {
    return world_.run_until([&] { return book_->noted.size() == calls; }, 1min);
  }

  SimWorld world_;
  std::shared_ptr<Book> book_ = std::make_shared<Book>();
  rpc::Agent *anna_ = nullptr, *bert_ = nullptr;
};

TEST_F(Sessions, ACallAndItsReplySurviveTheLossOfTheConnection) {
  auto call = held_call();
  reset();
  world_.run_for(100ms);
  answer_held();
  EXPECT_EQ(world_.got(std::move(call)), 70);
  EXPECT_EQ(book_->noted, std::vector<std::int64_t>{7}) << "it ran once";
  EXPECT_GE(anna_->counts().connections_made, 2U);
  EXPECT_TRUE(world_.run_until_idle());
}

TEST_F(Sessions, ACallSurvivesALostConnectionWhileItsCallerDrains) { survives_while_draining("anna"); }
TEST_F(Sessions, ACallSurvivesALostConnectionWhileItsCalleeDrains) { survives_while_draining("bert"); }

// The agent has said goodbye, so its death is no loss.
TEST_F(Sessions, AnAgentThatDiesWhileItDrainsHasLeft) {
  auto call = held_call();
  auto drained = bert_->drain(1min);
  world_.run_for(100ms);
  world_.crash(*world_.find("bert"), SimCrash::process);
  expect_error([&] { world_.got(std::move(call)); }, ErrorKind::shut_down, rpc::Execution::maybe_executed);
}

// A call to an agent that drains, and a call that waits for the next incarnation.
TEST_F(Sessions, NewCallsDoNotUseTheConnectionOfAnAgentThatDrains) {
  auto call = held_call();
  auto drained = bert_->drain(1min);
  world_.run_for(100ms);
  const rpc::Peer bert = anna_->connect("sim://bert");
  auto later = bert.with({.wait_for_ready = true}).call<&Book::note>(9);
  for (int i = 0; i < 20; ++i)
    expect_error([&] { world_.got(bert.call<&Book::note>(8)); }, ErrorKind::shut_down,
                 rpc::Execution::not_sent);
  EXPECT_LE(anna_->counts().connections_made, 5U);
  serves_later(std::move(call), std::move(drained), std::move(later));
}

TEST_F(Sessions, ACallHeldDuringAnAbsenceDoesNotGoToAnAgentThatDrains) {
  auto call = held_call();
  lose_connection();
  const rpc::Peer bert = anna_->connect("sim://bert");
  auto later = bert.with({.wait_for_ready = true}).call<&Book::note>(9);
  auto other = bert.call<&Book::note>(8);
  world_.run_for(100ms);
  auto drained = bert_->drain(1min);
  world_.network().heal();
  expect_error([&] { world_.got(std::move(other)); }, ErrorKind::shut_down, rpc::Execution::not_sent);
  serves_later(std::move(call), std::move(drained), std::move(later));
}

// The route to the name waits for an earlier incarnation, until that is gone. A route to the address does
// not.
TEST_F(Sessions, NobodyDialsAnAgentThatHasLeftForAnEarlierIncarnation) {
  start_both();
  world_.got(bert_->connect("sim://anna").call<&Book::note>(1));
  world_.crash(*world_.find("bert"), SimCrash::host);  // anna does not notice it
  bert_ = &start("bert");
  world_.got(bert_->connect("sim://anna").call<&Book::note>(2));
  auto held = anna_->peer("bert").call<&Book::hold>(7);
  ASSERT_TRUE(noted(3));
  auto drained = bert_->drain(1min);
  world_.run_for(100ms);
  reset();
  const rpc::Peer bert = anna_->connect("sim://bert");
  expect_error([&] { world_.got(bert.call<&Book::note>(8)); }, ErrorKind::shut_down,
               rpc::Execution::not_sent);
  EXPECT_FALSE(anna_->core()->sessions().absent("bert").empty()) << "the earlier incarnation";
  answer_held();
  EXPECT_EQ(world_.got(std::move(held)), 70);
  world_.got(std::move(drained));
  bert_->shut_down();
  EXPECT_TRUE(world_.run_until_idle(1h));
}

TEST_F(Sessions, ACallThatFailsFastFailsWithItsConnection) {
  const rpc::Peer bert = start_both();
  world_.got(bert.call<&Book::note>(1));
  auto call = bert.with({.fail_fast = true}).call<&Book::hold>(7);
  ASSERT_TRUE(noted(2));
  reset();
  expect_error([&] { world_.got(std::move(call)); }, ErrorKind::peer_lost, rpc::Execution::maybe_executed);
  EXPECT_TRUE(world_.run_until([&] { return book_->cancelled == 1; }, 30s)) << "when it is reached again";
}

TEST_F(Sessions, ACallThatFailsFastAndWaitsForCreditAlsoFails) {
  rpc::AgentOptions narrow;
  narrow.limits.calls = 1;
  auto first = held_call({}, narrow);
  auto second = anna_->connect("sim://bert").with({.fail_fast = true}).call<&Book::note>(8);
  reset();
  expect_error([&] { world_.got(std::move(second)); }, ErrorKind::unavailable, rpc::Execution::not_sent);
  answer_held();
  EXPECT_EQ(world_.got(std::move(first)), 70);
}

TEST_F(Sessions, ACallOnTheLoopDoesNotOvertakeAnEarlierCall) {
  const rpc::Peer bert = start_both();
  world_.got(bert.ready());
  rpc::Future<std::int64_t> first, second;
  anna_->core()->loops().front()->post([&] { second = bert.call<&Book::note>(2); });
  first = bert.call<&Book::note>(1);
  EXPECT_EQ(world_.got(std::move(first)), 1);
  EXPECT_EQ(world_.got(std::move(second)), 2);
  EXPECT_EQ(book_->noted, (std::vector<std::int64_t>{1, 2}));
}

TEST_F(Sessions, AReplyThatIsReadyDuringAnAbsenceIsSentAfterIt) {
  auto call = held_call();
  lose_connection();
  EXPECT_TRUE(anna_->core()->sessions().knows(bert_->id()));
  answer_held();
  world_.run_for(5s);
  EXPECT_FALSE(call.ready());
  world_.network().heal();
  EXPECT_EQ(world_.got(std::move(call)), 70);
  EXPECT_EQ(book_->noted, std::vector<std::int64_t>{7});
  EXPECT_TRUE(world_.run_until_idle());
  EXPECT_EQ(anna_->counts().waiting + bert_->counts().serving, 0U);
}

TEST_F(Sessions, CallsMadeDuringAnAbsenceWaitForItsEnd) {
  const rpc::Peer peer = start_both();
  world_.got(peer.call<&Book::note>(0));
  lose_connection();
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
  auto call = held_call();
  lose_connection();
  const auto begin = world_.now();
  expect_error([&] { world_.got(std::move(call)); }, ErrorKind::peer_lost, rpc::Execution::maybe_executed,
               "did not connect again within 20");
  EXPECT_GE(world_.now() - begin, 19s);
  EXPECT_LE(world_.now() - begin, 21s);
  EXPECT_FALSE(anna_->core()->sessions().knows(bert_->id()));
  // The other side has timed out, too. Calls work again, in a new session.
  world_.network().heal();
  EXPECT_EQ(book_->cancelled, 1);
  const rpc::Peer bert = anna_->connect("sim://bert");
  EXPECT_EQ(world_.got(bert.with({.wait_for_ready = true}).call<&Book::note>(8)), 8);
  EXPECT_TRUE(anna_->core()->sessions().is_gone(bert_->id())) << "for the layers";
  EXPECT_TRUE(bert_->core()->sessions().is_gone(anna_->id()));
  EXPECT_EQ(world_.got(bert.call<&Book::sum>(count_to(4))), 10);
}

TEST_F(Sessions, ACallThatWaitsUntilItsPeerIsReadyOutlivesItsSession) {
  const rpc::Peer peer = start_both().with({.wait_for_ready = true});
  world_.got(peer.call<&Book::note>(1));
  lose_connection();
  auto call = peer.call<&Book::note>(2);
  world_.run_for(1s);
  anna_->core()->lose(bert_->id(), rpc::Error(ErrorKind::peer_lost, "the test knows it"));
  world_.network().heal();
  EXPECT_EQ(world_.got(std::move(call)), 2);
}

// The peer whose timeout has passed notifies the peer that returns.
TEST_F(Sessions, APeerThatReturnsAfterTheTimeoutGetsTheError) {
  auto call = held_call({.heartbeat = {0s, 60s}}, {.heartbeat = {0s, 2s}});
  lose_connection();
  world_.run_for(200ms);
  world_.network().heal();  // the reset reaches the other side
  world_.network().partition({"anna"}, {"bert"});
  world_.run_for(10s);
  world_.network().heal();
  ASSERT_EQ(book_->cancelled, 1) << "the peer has given the caller up";
  expect_error([&] { world_.got(std::move(call)); }, ErrorKind::lease_lost);
}

TEST_F(Sessions, TheExitOfAProcessIsDetectedAtOnce) {
  auto call = held_call();
  const auto begin = world_.now();
  world_.crash(*world_.find("bert"), SimCrash::process);  // the host of the process refuses connections
  EXPECT_EQ(kind_of([&] { return world_.got(std::move(call)); }), ErrorKind::peer_lost);
  EXPECT_LE(world_.now() - begin, 1s);
}

TEST_F(Sessions, OneRefusedConnectionProvesNothing) {
  auto call = held_call();
  lose_connection();
  world_.network().weather().refusals = 1000;
  world_.network().heal();
  const auto route = anna_->connect("sim://bert").calls().route();
  ASSERT_TRUE(world_.run_until([&] { return route->reach() == rpc::Route::Reach::failing; }, 10s));
  world_.network().weather().refusals = 0;
  ASSERT_TRUE(world_.run_until([&] { return anna_->core()->sessions().is_connected(bert_->id()); }, 10s));
  answer_held();
  EXPECT_EQ(world_.got(std::move(call)), 70);
}

TEST_F(Sessions, ANewIncarnationEndsTheSessionWithTheOldOne) {
  auto call = held_call({.heartbeat = {0s, 1h}}, {.heartbeat = {0s, 1h}});
  lose_connection();
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
  auto call = held_call();
  const auto begin = world_.now();
  world_.find("bert")->destroy_kept();
  EXPECT_EQ(kind_of([&] { return world_.got(std::move(call)); }), ErrorKind::peer_lost);
  EXPECT_LE(world_.now() - begin, 1s);
}

TEST_F(Sessions, ACancellationReachesTheCalleeAfterAnAbsence) {
  auto call = held_call();
  lose_connection();
  call.cancel();
  EXPECT_EQ(kind_of([&] { return world_.got(std::move(call)); }), ErrorKind::cancelled);
  EXPECT_EQ(book_->cancelled, 0);
  world_.network().heal();
  EXPECT_TRUE(world_.run_until([&] { return book_->cancelled == 1; }, 30s));
  EXPECT_TRUE(world_.run_until_idle());
  EXPECT_EQ(bert_->counts().serving, 0U);
}

// Its connection is lost at the same time.
TEST_F(Sessions, APeerThatTheJobHasDeclaredDeadIsNotAwaited) {
  auto call = held_call();
  lose_connections(*anna_);
  anna_->core()->loops().front()->post([&] { anna_->core()->forget(bert_->id(), "the test says so"); });
  const auto begin = world_.now();
  EXPECT_TRUE(test::error_of([&] { world_.got(std::move(call)); }));
  EXPECT_LE(world_.now() - begin, 1s);
}

// The lost frame may be the first one that the peer sent.
TEST_F(Sessions, AnAbsentPeerIsAwaitedEvenIfNoFrameOfItsSessionArrived) {
  const rpc::Peer peer = start_both();
  world_.got(peer.ready());
  auto call = peer.call<&Book::note>(1);
  reset();
  EXPECT_EQ(world_.got(std::move(call)), 1);
  EXPECT_NE(bert_->core()->sessions().find(anna_->id()), nullptr);
}

TEST_F(Sessions, AcknowledgedFramesAreReleased) {
  const rpc::Peer peer = start_both();
  EXPECT_EQ(world_.got(peer.call<&Book::page>(3, 100'000)).size(), 100'000U);
  reset();  // before the acknowledgement is due
  EXPECT_EQ(world_.got(peer.call<&Book::page>(4, 100'000)).size(), 100'000U);
  world_.run_for(1s);
  EXPECT_EQ(bert_->core()->sessions().all().front()->kept_bytes(), 0U);
  EXPECT_EQ(anna_->core()->sessions().all().front()->kept_bytes(), 0U);
}

TEST_F(Sessions, AHeartbeatAcknowledgesTheLastFrames) {
  world_.got(start_both({.heartbeat = {1s, 20s}}).call<&Book::note>(1));
  const auto session = bert_->core()->sessions().find(anna_->id());
  EXPECT_GT(session->kept_bytes(), 0U) << "the small reply";
  EXPECT_TRUE(world_.run_until([&] { return session->kept_bytes() == 0; }, 2s));
}

TEST_F(Sessions, UnacknowledgedRepliesExceedNoLimit) {
  rpc::AgentOptions narrow;
  narrow.limits.in_flight = 150 << 10;
  const rpc::Peer bert = start_both({}, narrow);
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

// Both sides call each other, each result is checked, and connections are reset at any time.
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

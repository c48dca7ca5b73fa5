// The incarnations that an agent knows: to whom they belong, and how much memory they use.
#include <weft/rpc/core/recent_map.h>
#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>

#include <gtest/gtest.h>

#include "tests/support/cluster.h"
#include "tests/support/errors.h"
#include "tests/support/hand_loop.h"

namespace weft::rpc::sessions_test {
namespace {

using test::error_of;
using test::got;
using test::kind_of;

const Error lost(ErrorKind::peer_lost, "the connection was lost");

AgentOptions small() {
  AgentOptions options{.name = "node"};
  options.limits.in_flight = options.limits.in_flight_total = 1;  // so the minima apply: 8 MiB
  return options;
}

class SessionsTest : public testing::Test {
 protected:
  ~SessionsTest() override {
    for (const auto& session : sessions_->close_all()) session->end(lost);
    loop_->drop();
  }
  std::shared_ptr<Session> open(const AgentId& peer, const std::string& identity = {},
                                bool resumable = true) {
    return sessions_->open(peer, identity, {}, resumable);
  }
  // A peer that has sent something over its session.
  std::shared_ptr<Session> open_used(std::uint64_t incarnation) {
    auto session = open({"peer", incarnation});
    session->arrive(0);
    return session;
  }
  bool lose(const AgentId& peer) { return sessions_->begin_absence(peer, lost, loop_); }

  const AgentId self_{"node", 1};
  const std::shared_ptr<test::HandLoop> loop_ = std::make_shared<test::HandLoop>();
  const std::shared_ptr<Sessions> sessions_ = std::make_shared<Sessions>(
      small(), self_, 7, ProcessId{}, [](const std::shared_ptr<Session>&, const Error&) {});
};

TEST_F(SessionsTest, AnIncarnationBelongsToTheNameThatHasStatedIt) {
  const AgentId worker{"worker", 5}, mallory{"mallory", 5};
  const auto refused = [&](const AgentId& peer) { return kind_of([&] { return open(peer); }); };
  EXPECT_EQ(refused({"mallory", 1}), ErrorKind::permission_denied) << "this agent's own";
  ASSERT_NE(open(worker), nullptr);
  EXPECT_EQ(refused(mallory), ErrorKind::permission_denied) << "while it is connected";
  ASSERT_TRUE(lose(worker));
  EXPECT_EQ(refused(mallory), ErrorKind::permission_denied) << "while it is absent";
  EXPECT_TRUE(sessions_->is_absent(worker));
  sessions_->close(worker)->end(lost);
  EXPECT_EQ(refused(mallory), ErrorKind::permission_denied) << "after its end";
  EXPECT_EQ(open(worker), nullptr);
  EXPECT_TRUE(sessions_->is_gone(worker));
  EXPECT_FALSE(sessions_->is_gone(mallory));
  EXPECT_EQ(sessions_->agent_of(5), worker);
  EXPECT_EQ(sessions_->agent_of(1), self_);
  EXPECT_EQ(sessions_->agent_of(6), std::nullopt);
}

TEST_F(SessionsTest, AConnectionWithoutSessionsAlsoClaimsItsIncarnation) {
  const AgentId old{"old", 5};
  EXPECT_EQ(open(old, {}, false), nullptr);
  EXPECT_EQ(kind_of([&] { return open({"mallory", 5}); }), ErrorKind::permission_denied);
  EXPECT_EQ(sessions_->find(old), nullptr);
  EXPECT_TRUE(sessions_->all().empty());
  EXPECT_FALSE(lose(old)) << "it has no session to keep";
  EXPECT_EQ(sessions_->close(old), nullptr);
  EXPECT_EQ(sessions_->agent_of(5), std::nullopt) << "and nothing is remembered of it";
}

TEST_F(SessionsTest, OnlyTheSameIdentityContinuesASession) {
  struct Case {
    const char *before, *now;
    bool is_allowed;
  };
  std::uint64_t incarnation = 10;
  for (const Case& one : {Case{"cert:worker", "cert:worker", true}, Case{"cert:worker", "psk:job7", false},
                          Case{"cert:worker", "", false}, Case{"psk:old", "psk:new", true},
                          Case{"psk:job7", "cert:worker", true}, Case{"psk:job7", "", false},
                          Case{"uid:1", "", true}, Case{"", "uid:1", true}, Case{"uid:1", "uid:2", false}}) {
    for (const bool absent : {false, true}) {
      const AgentId peer{"worker", ++incarnation};
      const auto session = open(peer, one.before);
      session->arrive(0);
      if (absent) {
        ASSERT_TRUE(lose(peer));
      }
      const auto error = error_of([&] { EXPECT_EQ(open(peer, one.now), session); });
      EXPECT_EQ(error ? std::optional(error->kind()) : std::nullopt,
                one.is_allowed ? std::nullopt : std::optional(ErrorKind::permission_denied))
          << one.before << " then " << one.now;
      EXPECT_EQ(sessions_->is_absent(peer), absent && !one.is_allowed) << one.before << " then " << one.now;
    }
  }
}

TEST_F(SessionsTest, OnlyTheLatestLostPeersAreRemembered) {
  for (std::uint64_t n = 0; n <= max_lost_remembered; ++n) {
    open_used(100 + n);
    sessions_->close({"peer", 100 + n})->end(lost);
  }
  EXPECT_FALSE(sessions_->is_gone({"peer", 100}));
  EXPECT_TRUE(sessions_->is_gone({"peer", 101}));
  EXPECT_EQ(sessions_->agent_of(100), std::nullopt);
}

TEST_F(SessionsTest, TheNumberOfAbsentPeersIsLimited) {
  std::uint64_t kept = 0;
  for (std::uint64_t n = 0; n < 20'000; ++n) {
    open_used(100 + n);
    if (lose({"peer", 100 + n})) {
      ++kept;
    } else {
      sessions_->close({"peer", 100 + n})->end(lost);
    }
  }
  EXPECT_EQ(kept, 16'384U);
  open_used(100);  // it returns
  open_used(90'000);
  EXPECT_TRUE(lose({"peer", 90'000})) << "and makes room for another one";
}

TEST_F(SessionsTest, TheRepliesThatAreKeptForAbsentPeersAreLimited) {
  const auto answer = [](Session& session, std::uint64_t id) {
    auto reply = OutgoingMessage::reply();
    Codec<Buffer>::encode(reply->result(), Buffer::allocate(3 << 20));
    return session.answer(id, reply->seal_reply(id, frame_flags::resumable), nullptr).keep;
  };
  const auto first = open_used(100), second = open_used(200);
  EXPECT_EQ(answer(*first, 1), Session::Keep::yes);
  EXPECT_EQ(answer(*first, 2), Session::Keep::yes);
  EXPECT_TRUE(lose({"peer", 100}));
  EXPECT_EQ(answer(*second, 1), Session::Keep::yes);
  EXPECT_EQ(answer(*first, 3), Session::Keep::too_many) << "12 MiB are kept in all, and 9 MiB for this peer";
  EXPECT_TRUE(lose({"peer", 200})) << "a peer with 3 MiB does not pay for another one";
}

// A link that ends at the same time as its session has calls that waited for credit.
TEST(SessionEnds, CallsOfALinkThatEndsLaterFail) {
  test::Cluster cluster{{}, {"a", "b"}};
  const Peer peer = cluster.peer("a", "b");
  const auto link = cluster["a"].core()->links().to(cluster["b"].id()).front();
  auto session = std::make_shared<Session>(cluster["b"].id(), 1, 1 << 20);
  session->end(lost);
  OutgoingCall outgoing = peer.make_call(ping_method, 0);
  outgoing.begin();
  outgoing.end();
  std::optional<ErrorKind> failed;
  std::vector<std::shared_ptr<PendingCall>> held{std::make_shared<CallbackCall>(
      std::move(outgoing), *peer.core(), peer.route(),
      [&](Result<PendingCall::Reply> reply) { failed = kind_of([&] { return std::move(reply).get(); }); })};
  session->leave(*link, std::move(held));
  EXPECT_EQ(failed, ErrorKind::peer_lost);
}

// The peer may be declared dead between its reply and the read of its identity.
TEST(PeerReady, OfAPeerThatWasForgottenMeanwhileFails) {
  test::Cluster cluster{{}, {"a", "b"}};
  const Peer peer = cluster.peer("a", "b");
  const auto route = peer.route();
  route->forget(cluster["b"].id());
  test::eventually("the route has forgotten it", [&] { return route->identity() == nullptr; });
  const auto error = error_of([&] { return got(peer.ready()); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind(), ErrorKind::peer_lost) << error->what();
}

}  // namespace
}  // namespace weft::rpc::sessions_test

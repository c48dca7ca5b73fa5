// The incarnations that an agent knows: to whom they belong, and how much memory they use.
#include <weft/rpc/core/recent_map.h>
#include <weft/rpc/endpoint/sessions.h>

#include "tests/support/cluster.h"
#include "tests/support/hand_loop.h"

namespace weft::rpc::sessions_test {
namespace {

using namespace test;

const Error lost(ErrorKind::peer_lost, "the connection was lost");

AgentOptions small() {
  AgentOptions options{.name = "node", .log = [](const LogRecord&) {}};
  options.limits.in_flight = options.limits.in_flight_total = 1;  // so the minima apply: 8 MiB
  return options;
}

class SessionsTest : public testing::Test {
 protected:
  ~SessionsTest() override {
    agent_.shut_down();
    loop_->drop();
  }
  std::shared_ptr<Session> open(const AgentId& peer, const std::string& identity = {}, bool is_kept = true,
                                const ProcessId& process = {}) {
    return sessions_.open(peer, identity, process, is_kept, [&](std::uint64_t number) {
      return std::make_shared<Session>(agent_.core(), peer, loop_, HelloInfo{}, is_kept, number);
    });
  }
  // A peer that has sent something over its session.
  std::shared_ptr<Session> open_used(std::uint64_t incarnation) {
    auto session = open({"peer", incarnation});
    session->arrived({.kind = FrameKind::request});
    return session;
  }
  bool lose(const AgentId& peer) { return sessions_.begin_absence(*sessions_.find(peer), lost, loop_); }

  Agent agent_{small()};
  const AgentId self_ = agent_.id();
  const std::shared_ptr<test::HandLoop> loop_ = std::make_shared<test::HandLoop>();
  Sessions& sessions_ = agent_.core()->sessions();
};

TEST_F(SessionsTest, AnIncarnationBelongsToTheNameThatHasStatedIt) {
  const AgentId worker{"worker", 5}, mallory{"mallory", 5};
  const auto refused = [&](const AgentId& peer) { return kind_of([&] { return open(peer); }); };
  EXPECT_EQ(refused({"mallory", self_.incarnation}), ErrorKind::permission_denied) << "this agent's own";
  ASSERT_NE(open(worker), nullptr);
  EXPECT_EQ(refused(mallory), ErrorKind::permission_denied) << "while it is connected";
  ASSERT_TRUE(lose(worker));
  EXPECT_EQ(refused(mallory), ErrorKind::permission_denied) << "while it is absent";
  EXPECT_TRUE(sessions_.is_absent(worker));
  const auto before = sessions_.close(worker);
  EXPECT_EQ(refused(mallory), ErrorKind::permission_denied) << "after its end";
  EXPECT_TRUE(sessions_.is_gone(worker));
  EXPECT_NE(open(worker), before) << "it gets another session";
  EXPECT_TRUE(sessions_.is_gone(worker)) << "for the layers";
  EXPECT_FALSE(sessions_.is_gone(mallory));
  EXPECT_EQ(sessions_.agent_of(5), worker);
  EXPECT_EQ(sessions_.agent_of(self_.incarnation), self_);
  EXPECT_EQ(sessions_.agent_of(6), std::nullopt);
}

TEST_F(SessionsTest, AConnectionWithoutSessionsAlsoClaimsItsIncarnation) {
  const AgentId old{"old", 5};
  const auto first = open(old, {}, false), second = open(old, {}, false);
  EXPECT_NE(first, second) << "each connection has a session";
  EXPECT_EQ(kind_of([&] { return open({"mallory", 5}); }), ErrorKind::permission_denied);
  EXPECT_EQ(kind_of([&] { return open(old); }), ErrorKind::protocol_error) << "with other features";
  EXPECT_FALSE(sessions_.close(*first)) << "the peer has another one";
  EXPECT_TRUE(sessions_.close(*second));
  EXPECT_EQ(sessions_.agent_of(5), std::nullopt) << "nothing is remembered of it";
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
      session->arrived({.kind = FrameKind::request});
      if (absent) {
        ASSERT_TRUE(lose(peer));
      }
      const auto error = test::error_of([&] { EXPECT_EQ(open(peer, one.now), session); });
      EXPECT_EQ(error ? std::optional(error->kind()) : std::nullopt,
                one.is_allowed ? std::nullopt : std::optional(ErrorKind::permission_denied))
          << one.before << " then " << one.now;
      EXPECT_EQ(sessions_.is_absent(peer), absent) << "until it has a connection: " << one.before;
    }
  }
}

TEST_F(SessionsTest, AnIdentityThatIsProvenLaterBelongsToTheSession) {
  const AgentId peer{"worker", 5};
  open(peer);
  open(peer, "uid:1");
  EXPECT_EQ(kind_of([&] { open(peer, "uid:2"); }), ErrorKind::permission_denied);
}

TEST_F(SessionsTest, OnlyTheLatestLostPeersAreRemembered) {
  for (std::uint64_t n = 0; n <= max_lost_remembered; ++n) {
    open_used(100 + n);
    sessions_.close({"peer", 100 + n});
  }
  EXPECT_FALSE(sessions_.is_gone({"peer", 100}));
  EXPECT_TRUE(sessions_.is_gone({"peer", 101}));
  EXPECT_EQ(sessions_.agent_of(100), std::nullopt);
}

TEST_F(SessionsTest, OnlyTheLatestLostPeersThatNeverUsedTheirSessionAreRemembered) {
  open_used(99);
  sessions_.close({"peer", 99});
  for (std::uint64_t n = 0; n <= 4096; ++n) {
    open({"peer", 100 + n});
    sessions_.close({"peer", 100 + n});
  }
  EXPECT_FALSE(sessions_.is_gone({"peer", 100}));
  EXPECT_TRUE(sessions_.is_gone({"peer", 101}));
  EXPECT_EQ(sessions_.agent_of(100), std::nullopt);
  EXPECT_TRUE(sessions_.is_gone({"peer", 99})) << "it had used its session";
}

TEST_F(SessionsTest, APeerThatReturnsIsForgottenAndRememberedLikeTheOthers) {
  const AgentId peer{"peer", 100};
  open_used(100);
  sessions_.close(peer);
  open_used(100);
  EXPECT_TRUE(sessions_.is_gone(peer));
  for (std::uint64_t n = 1; n <= max_lost_remembered; ++n) {
    open_used(100 + n);
    sessions_.close({"peer", 100 + n});
  }
  EXPECT_FALSE(sessions_.is_gone(peer));
  sessions_.close(peer);
  EXPECT_TRUE(sessions_.is_gone(peer));
}

TEST_F(SessionsTest, TheNumberOfAbsentPeersIsLimited) {
  std::uint64_t kept = 0;
  for (std::uint64_t n = 0; n < 20'000; ++n) {
    open_used(100 + n);
    if (lose({"peer", 100 + n})) {
      ++kept;
    } else {
      sessions_.close({"peer", 100 + n});
    }
  }
  EXPECT_EQ(kept, 16'384U);
  EXPECT_TRUE(sessions_.connected(*open_used(100)));  // it returns
  open_used(90'000);
  EXPECT_TRUE(lose({"peer", 90'000})) << "and makes room for another one";
}

TEST_F(SessionsTest, TheNumberOfAbsentPeersThatNeverUsedTheirSessionIsLimited) {
  std::uint64_t kept = 0;
  for (std::uint64_t n = 0; n < 1500; ++n) {
    open({"peer", 100 + n});
    if (lose({"peer", 100 + n})) {
      ++kept;
    } else {
      sessions_.close({"peer", 100 + n});
    }
  }
  EXPECT_EQ(kept, 1024U);
  open_used(90'000);
  EXPECT_TRUE(lose({"peer", 90'000})) << "a peer that has used its session does not pay for them";
  EXPECT_TRUE(sessions_.connected(*open({"peer", 100})));  // it returns
  open({"peer", 90'001});
  EXPECT_TRUE(lose({"peer", 90'001})) << "and makes room for another one";
}

TEST_F(SessionsTest, TheRepliesThatAreKeptForAbsentPeersAreLimited) {
  const auto answer = [&](Session& session, std::uint64_t id) {
    auto reply = OutgoingMessage::reply();
    Codec<Buffer>::encode(reply->result(), Buffer::allocate(3 << 20));
    session.send_reply(id, reply->seal_reply(id), ActiveCall(agent_.core()->accounts()));
    loop_->turn();
  };
  const auto first = open_used(100), second = open_used(200);
  answer(*first, 1);
  answer(*first, 2);
  EXPECT_TRUE(lose({"peer", 100}));
  answer(*second, 1);
  EXPECT_FALSE(first->is_over() || second->is_over());
  answer(*first, 3);
  EXPECT_TRUE(first->is_over()) << "12 MiB are kept in all, and 9 MiB for this peer";
  EXPECT_TRUE(lose({"peer", 200})) << "a peer with 3 MiB does not pay for another one";
}

TEST_F(SessionsTest, TheLatestSessionWithANameIsTheOneThatBeganLast) {
  open({"peer", 9});
  const auto second = open({"peer", 5});
  EXPECT_EQ(sessions_.latest("peer"), second);
  open({"another", 20});
  EXPECT_EQ(sessions_.latest("peer"), second);
  sessions_.close({"peer", 5});
  EXPECT_EQ(sessions_.latest("peer")->peer(), (AgentId{"peer", 9}));
}

// The end of an absence and the end of the peer's process are noticed at the same time.
TEST_F(SessionsTest, AnAbsenceThatHasEndedGivesNobodyUp) {
  ProcessId process = sessions_.own_process();
  process.number = 0x7fff'fff0;  // no process has it
  const AgentId peer{"peer", 5};
  const auto session = open(peer, {}, true, process);
  ASSERT_TRUE(lose(peer));
  loop_->post([&] { sessions_.connected(*session); });
  loop_->turn();
  EXPECT_EQ(sessions_.find(peer), session);
  ASSERT_TRUE(lose(peer));
  loop_->turn();
  EXPECT_EQ(sessions_.find(peer), nullptr);
}

// The peer may be declared dead between its reply and the read of its identity.
TEST(PeerReady, OfAPeerThatWasForgottenMeanwhileFails) {
  test::Cluster cluster{{}, {"a", "b"}};
  const Peer peer = cluster.peer("a", "b");
  const auto route = peer.calls().route();
  route->forget(cluster["b"].id());
  test::eventually("the route has forgotten it", [&] { return route->identity() == nullptr; });
  expect_error([&] { return got(peer.ready()); }, ErrorKind::peer_lost);
}

}  // namespace
}  // namespace weft::rpc::sessions_test

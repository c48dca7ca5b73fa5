#include <weft/rpc/job/membership/collective_leader.h>

#include <weft/rpc/codec/packed.h>
#include <weft/rpc/core/asio_loop.h>

#include "tests/support/cluster.h"

namespace weft::rpc::collective_leader_test {
namespace {

using namespace std::chrono_literals;
using namespace test;
using detail::CollectiveArrival;
using detail::CollectiveLeader;

const AgentId a{"a", 1}, b{"b", 1}, c{"c", 1};

CollectiveArrival arrival(std::vector<AgentId> among, std::uint64_t round = 0, std::string name = "x") {
  return {.name = std::move(name), .among = std::move(among), .round = round, .seen = 5, .type = "i64"};
}

Roster roster(const std::vector<std::pair<AgentId, MemberState>>& members) {
  StoreView view;
  for (const auto& [id, state] : members) {
    MemberRecord record;
    record.name = id.name;
    record.incarnation = id.incarnation;
    record.state = state;
    view.entries.emplace("members/" + id.name, to_text(record));
  }
  return Roster(view);
}

class CollectiveLeaderTest : public testing::Test {
 protected:
  using Arrived = Future<CollectiveLeader::Gathered>;

  ~CollectiveLeaderTest() override { loop->stop(); }
  Arrived come(const AgentId& who, const CollectiveArrival& to, std::int64_t value = 0) {
    return leader->arrive(who, to, pack(value));
  }
  static std::map<std::string, std::int64_t> values(Arrived future) {
    std::map<std::string, std::int64_t> values;
    for (const auto& [name, bytes] : got(std::move(future))) values[name] = unpack<std::int64_t>(bytes);
    return values;
  }
  static void expect_error(Arrived future, ErrorKind kind, const std::string& text) {
    test::expect_error([&] { return got(std::move(future)); }, kind, test::whole(text));
  }
  void judge(const Roster& members, std::uint64_t version) { leader->judge(members, version)(); }

  std::shared_ptr<AsioLoop> loop = std::make_shared<AsioLoop>();
  std::shared_ptr<CollectiveLeader> leader = std::make_shared<CollectiveLeader>(loop);
};

using Values = std::map<std::string, std::int64_t>;

TEST_F(CollectiveLeaderTest, RoundsNamesAndMembersAreDistinguished) {
  auto first = come(a, arrival({a, b}, 0), 10), second = come(a, arrival({a, b}, 1), 11);
  auto other = come(a, arrival({a, b}, 0, "y"), 12), larger = come(a, arrival({a, b, c}, 0), 13);
  auto alone = come(a, arrival({a}, 0), 14);
  EXPECT_EQ(values(std::move(alone)), (Values{{"a", 14}}));
  got(come(b, arrival({a, b}, 1), 21));
  EXPECT_FALSE(first.ready());
  EXPECT_EQ(values(std::move(second)), (Values{{"a", 11}, {"b", 21}}));
  got(come(b, arrival({a, b}, 0, "y"), 22));
  EXPECT_EQ(values(std::move(other)), (Values{{"a", 12}, {"b", 22}}));
  got(come(b, arrival({a, b}, 0), 20));
  EXPECT_EQ(values(std::move(first)), (Values{{"a", 10}, {"b", 20}}));
  EXPECT_FALSE(larger.ready());
}

TEST_F(CollectiveLeaderTest, ADeadlineFailsARoundAlsoForLateMembers) {
  CollectiveArrival hasty = arrival({a, b, c});
  hasty.timeout = 1;
  auto patient = come(b, arrival({a, b, c}));
  const std::string text = "all_gather 'x': 'c' did not call it before the deadline";
  expect_error(come(a, hasty), ErrorKind::deadline_exceeded, text);
  expect_error(std::move(patient), ErrorKind::deadline_exceeded, text);
  expect_error(come(c, arrival({a, b, c})), ErrorKind::deadline_exceeded, text);
  // The next round is independent.
  auto next = come(a, arrival({a, b, c}, 1));
  auto too = come(b, arrival({a, b, c}, 1));
  got(come(c, arrival({a, b, c}, 1)));
  got(std::move(next));
  got(std::move(too));
}

TEST_F(CollectiveLeaderTest, TheDeadlineOfACompletedRoundHasNoEffect) {
  CollectiveArrival slow = arrival({a, b});
  slow.timeout = static_cast<std::uint64_t>(std::chrono::nanoseconds(10ms).count());
  auto first = come(a, slow);
  got(come(b, slow));
  got(std::move(first));
  slow.round = 1;
  slow.timeout *= 3;
  // The deadline of round 1 is the later one. When it fires, the loop has passed the deadline of round 0.
  expect_error(come(a, slow), ErrorKind::deadline_exceeded,
               "all_gather 'x': 'b' did not call it before the deadline");
}

TEST_F(CollectiveLeaderTest, AnErrorNamesOnlySomeOfManyMissingMembers) {
  std::vector<AgentId> all;
  for (char name = 'a'; name <= 'z'; ++name) all.push_back({std::string(1, name), 1});
  CollectiveArrival hasty = arrival(all, 0, "");
  hasty.timeout = 1;
  hasty.type = "";
  expect_error(
      come(a, hasty), ErrorKind::deadline_exceeded,
      "barrier: 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i' and 17 others did not call it before the deadline");
}

TEST_F(CollectiveLeaderTest, AServingMemberIsAwaitedUntilItLeaves) {
  auto waiting = come(a, arrival({a, b}));
  judge(roster({{a, MemberState::joined}, {b, MemberState::serving}}), 5);
  EXPECT_FALSE(waiting.ready());
  judge(roster({{a, MemberState::joined}, {b, MemberState::left}}), 6);
  expect_error(std::move(waiting), ErrorKind::shut_down, "all_gather 'x': 'b' has left the job");
}

TEST_F(CollectiveLeaderTest, AnotherIncarnationIsNotTheAwaitedMember) {
  auto waiting = come(a, arrival({a, b}));
  judge(roster({{a, MemberState::joined}, {{"b", 2}, MemberState::joined}}), 5);
  expect_error(std::move(waiting), ErrorKind::peer_lost, "all_gather 'x': 'b' was lost");
  waiting = come(a, arrival({a, {"b", 2}}));
  got(come({"b", 2}, arrival({a, {"b", 2}})));
  got(std::move(waiting));
}

// A member that the leader has not seen yet is not taken for lost.
TEST_F(CollectiveLeaderTest, UsesARosterAtLeastAsNewAsThatOfTheMembers) {
  const Roster early = roster({{a, MemberState::joined}});
  auto waiting = come(a, arrival({a, b}));
  judge(early, 4);
  EXPECT_FALSE(waiting.ready());
  judge(early, 5);
  expect_error(std::move(waiting), ErrorKind::peer_lost, "all_gather 'x': 'b' was lost");
}

TEST_F(CollectiveLeaderTest, AMemberThatGivesUpFailsARoundInFlight) {
  auto waiting = come(a, arrival({a, b, c})), given_up = come(b, arrival({a, b, c}));
  leader->give_up(b, arrival({a, b, c}), ErrorKind::aborted, "no longer waits");
  expect_error(std::move(waiting), ErrorKind::aborted, "all_gather 'x': 'b' no longer waits");
  expect_error(std::move(given_up), ErrorKind::aborted, "all_gather 'x': 'b' no longer waits");
  auto next = come(a, arrival({a, b}, 0));
  got(come(b, arrival({a, b}, 0)));
  leader->give_up(b, arrival({a, b}, 0), ErrorKind::aborted, "no longer waits");
  got(std::move(next));
  auto later = come(a, arrival({a, b}, 1));
  got(come(b, arrival({a, b}, 1)));
  got(std::move(later));
}

// --- Members that are named by a digest ---

CollectiveArrival by_digest(const std::vector<AgentId>& among, std::uint64_t round = 0) {
  CollectiveArrival brief = arrival(among, round);
  brief.digest = detail::digest_of(among);
  brief.among.clear();
  return brief;
}

constexpr const char* asked = "all_gather 'x': the leader does not know the members yet";

TEST_F(CollectiveLeaderTest, OneMemberIsAskedForTheListAndTheOthersWait) {
  expect_error(come(b, by_digest({a, b, c})), ErrorKind::not_found, asked);
  auto of_c = come(c, by_digest({a, b, c}), 3), of_a = come(a, by_digest({a, b, c}), 1);
  auto of_d = come({"d", 1}, by_digest({a, b, c}), 4), of_other = come({"a", 2}, by_digest({a, b, c}), 5);
  EXPECT_FALSE(of_a.ready());
  auto of_b = come(b, arrival({a, b, c}), 2);
  expect_error(std::move(of_d), ErrorKind::permission_denied, "'d' is not a member of all_gather 'x'");
  expect_error(std::move(of_other), ErrorKind::permission_denied, "'a' is not a member of all_gather 'x'");
  for (Arrived* one : {&of_a, &of_b, &of_c})
    EXPECT_EQ(values(std::move(*one)), (Values{{"a", 1}, {"b", 2}, {"c", 3}}));
  // The leader keeps the list.
  auto next = come(a, by_digest({a, b, c}, 1)), too = come(c, by_digest({a, b, c}, 1));
  expect_error(come({"d", 1}, by_digest({a, b, c}, 1)), ErrorKind::permission_denied,
               "'d' is not a member of all_gather 'x'");
  got(come(b, by_digest({a, b, c}, 1)));
  got(std::move(next));
  got(std::move(too));
}

TEST_F(CollectiveLeaderTest, AnExpectedListIsNotAskedFor) {
  leader->expect({a, b});
  auto of_a = come(a, by_digest({a, b}));
  got(come(b, by_digest({a, b})));
  got(std::move(of_a));
}

TEST_F(CollectiveLeaderTest, AnotherMemberIsAskedIfTheAskedOneIsGone) {
  expect_error(come(b, by_digest({a, b, c})), ErrorKind::not_found, asked);
  auto of_c = come(c, by_digest({a, b, c}));
  judge(roster({{a, MemberState::joined}, {c, MemberState::joined}}), 4);  // older than what b has seen
  EXPECT_FALSE(of_c.ready());
  const Roster now = roster({{a, MemberState::joined}, {b, MemberState::lost}, {c, MemberState::joined}});
  judge(now, 6);
  expect_error(std::move(of_c), ErrorKind::not_found, asked);
  of_c = come(c, arrival({a, b, c}));
  judge(now, 6);
  expect_error(std::move(of_c), ErrorKind::peer_lost, "all_gather 'x': 'b' was lost");
}

TEST_F(CollectiveLeaderTest, ADeadlineAppliesAlsoWhileTheMembersAreUnknown) {
  expect_error(come(b, by_digest({a, b, c})), ErrorKind::not_found, asked);
  CollectiveArrival hasty = by_digest({a, b, c});
  hasty.timeout = 1;
  expect_error(come(c, hasty), ErrorKind::deadline_exceeded,
               "all_gather 'x': the leader did not call it before the deadline");
}

TEST_F(CollectiveLeaderTest, ADigestOfOtherMembersIsRefused) {
  CollectiveArrival wrong = by_digest({a, b});
  wrong.among = {a, b, c};
  expect_error(come(a, wrong), ErrorKind::invalid_argument,
               "all_gather 'x': the digest of 'a' is not that of its members");
  EXPECT_NE(detail::digest_of({a, b}), detail::digest_of({a, {"b", 2}}));
  EXPECT_NE(detail::digest_of({{"a 1", 1}}), detail::digest_of({{"a", 1}}));
}

// All messages of a barrier at its leader: first when the leader does not know the members.
TEST_F(CollectiveLeaderTest, ABarrierCostsBytesInProportionToItsMembers) {
  constexpr std::size_t size = 1000;
  std::vector<AgentId> all;
  for (std::size_t rank = 0; rank < size; ++rank)
    all.push_back({"worker" + std::to_string(size + rank), 1'000'000'000'000'000'000 + rank});
  for (std::uint64_t round = 0; round < 2; ++round) {
    std::size_t bytes = 0;
    CollectiveArrival brief = by_digest(all, round);
    brief.type = "";
    std::vector<Arrived> waiting;
    for (const AgentId& who : all) {
      bytes += pack(brief).size();
      waiting.push_back(leader->arrive(who, brief, Buffer{}));
      if (!waiting.back().ready() || &who == &all.back()) continue;
      EXPECT_EQ(who, all.front());
      EXPECT_EQ(test::kind_of([&] { got(std::move(waiting.back())); }), ErrorKind::not_found);
      CollectiveArrival whole = brief;
      whole.among = all;
      bytes += pack(whole).size();
      waiting.back() = leader->arrive(who, whole, Buffer{});
    }
    for (Arrived& one : waiting) bytes += pack(got(std::move(one))).size();
    EXPECT_LT(bytes / size, 1000U) << bytes;
  }
}

// --- The end of members ---

TEST_F(CollectiveLeaderTest, AFailedCollectiveIsForgottenWithItsMembers) {
  auto waiting = come(a, arrival({a, b})), other = come(a, arrival({a, c})),
       open = come(a, arrival({a, b}, 1));
  EXPECT_EQ(leader->kept(), 2U);
  leader->give_up(a, arrival({a, b}), ErrorKind::aborted, "no longer waits");
  leader->give_up(a, arrival({a, c}), ErrorKind::aborted, "no longer waits");
  EXPECT_EQ(leader->kept(), 2U);
  leader->forget(c);
  EXPECT_EQ(leader->kept(), 1U);
  leader->forget(b);
  EXPECT_EQ(leader->kept(), 1U);  // a round is in progress
  judge(roster({{a, MemberState::joined}}), 6);
  leader->forget(b);
  EXPECT_EQ(leader->kept(), 0U);
}

TEST_F(CollectiveLeaderTest, TypesMustAgree) {
  auto first = come(a, arrival({a, b, c}));
  CollectiveArrival barrier = arrival({a, b, c});
  barrier.type = "";
  const std::string text = "barrier 'x': 'b' calls barrier, 'a' calls all_gather of i64";
  expect_error(come(b, barrier), ErrorKind::type_mismatch, text);
  expect_error(std::move(first), ErrorKind::type_mismatch, text);
  expect_error(come(c, arrival({a, b, c})), ErrorKind::type_mismatch, text);
}

TEST_F(CollectiveLeaderTest, ASecondCallOfAMemberIsRefused) {
  auto first = come(a, arrival({a, b}), 1);
  expect_error(come(a, arrival({a, b}), 2), ErrorKind::invalid_argument,
               "all_gather 'x': 'a' has called it already");
  got(come(b, arrival({a, b})));
  EXPECT_EQ(values(std::move(first)), (Values{{"a", 1}, {"b", 0}}));
}

TEST_F(CollectiveLeaderTest, AllFailWithTheJob) {
  auto one = come(a, arrival({a, b})), other = come(a, arrival({a, c}));
  leader->fail_all(Error(ErrorKind::shut_down, "it ends"));
  expect_error(std::move(one), ErrorKind::shut_down, "all_gather 'x': at its leader 'a': it ends");
  expect_error(std::move(other), ErrorKind::shut_down, "all_gather 'x': at its leader 'a': it ends");
}

TEST_F(CollectiveLeaderTest, AStoppedLeaderSendsNoReplies) {
  auto waiting = come(a, arrival({a, b})), other = come(b, arrival({a, b}, 1));
  leader->stop();
  leader->fail_all(Error(ErrorKind::shut_down, "it ends"));
  leader->give_up(b, arrival({a, b}, 1), ErrorKind::aborted, "no longer waits");
  judge(Roster(), 9);
  EXPECT_FALSE(come(b, arrival({a, b})).ready());
  EXPECT_FALSE(waiting.ready());
  EXPECT_FALSE(other.ready());
}

TEST_F(CollectiveLeaderTest, SeveralThreadsMayArriveAtOnce) {
  constexpr std::uint64_t rounds = 200;
  std::vector<std::thread> threads;
  std::atomic<int> all{0};
  for (const AgentId& who : {a, b, c})
    threads.emplace_back([&, who] {
      for (std::uint64_t round = 0; round < rounds; ++round) {
        CollectiveArrival next = arrival({a, b, c}, round);
        next.timeout = static_cast<std::uint64_t>(std::chrono::nanoseconds(1h).count());
        all += static_cast<int>(values(come(who, next, static_cast<std::int64_t>(round))).size());
      }
    });
  for (std::uint64_t version = 5; version < 100; ++version)
    judge(roster({{a, MemberState::joined}, {b, MemberState::joined}, {c, MemberState::joined}}), version);
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(all, 3 * 3 * static_cast<int>(rounds));
}

}  // namespace
}  // namespace weft::rpc::collective_leader_test

// Cases that the simulation does not reach: other agents' forks, misuse, limits.
#include <gtest/gtest.h>
#include <weft/rref/protocol/owner_table.h>

#include <stdexcept>

#include "tests/rref/protocol/support.h"

namespace weft::rref::protocol::protocol_owner_table_test {
namespace {

// Agents with incarnations far apart: the owner, and three users.
const rpc::AgentId kOwner{"owner", 1000};
const rpc::AgentId kAnna{"anna", 2000};
const rpc::AgentId kBert{"bert", 3000};
const rpc::AgentId kCora{"cora", 4000};

// The n-th birth that a user assigns for the owner.
RRefId object(const rpc::AgentId& creator, std::uint64_t n) {
  return {creator.incarnation, birth_base(1000) + n};
}
ForkId fork(const rpc::AgentId& maker, std::uint64_t n) { return {maker.incarnation, birth_base(1000) + n}; }

class OwnerTableTest : public testing::Test {
 protected:
  OwnerTable table{kOwner};
  Actions out;

  // Anna creates object 0, alive.
  RRefId annas_object() {
    EXPECT_EQ(table.begin_create(kAnna, object(kAnna, 0), {"Net", "a.cc:1"}, out).verdict,
              Verdict::registered);
    table.finish_create(object(kAnna, 0), std::nullopt, out);
    out.clear();
    return object(kAnna, 0);
  }
  Standing add(const rpc::AgentId& from, const RRefId& rref, const ForkId& id, const rpc::AgentId& parent) {
    return table.on_fork_add(from, {rref, id, kAnna, parent}, out);
  }
  Handover request_target(const RRefId& rref) { return {rref, {}, kOwner, kAnna, false}; }
};

// --- Creation ---

TEST_F(OwnerTableTest, FailureWithoutTextIsStillAFailure) {
  table.begin_create(kAnna, object(kAnna, 0), {}, out);
  table.finish_create(object(kAnna, 0), "", out);
  EXPECT_NE(table.failure(object(kAnna, 0)), "");
}

TEST_F(OwnerTableTest, LocalCreationNotifiesItsWaiters) {
  const RRefId good = table.create_local({}, ObjectState::creating);
  const RRefId bad = table.create_local({}, ObjectState::creating);
  table.finish_create(good, std::nullopt, out);
  table.finish_create(bad, "no", out);
  EXPECT_EQ(all<ObjectReady>(out).at(0).rref, good);
  EXPECT_EQ(all<ObjectFailed>(out).at(0).rref, bad);
  table.unhold(bad, out);
  EXPECT_EQ(all<DeleteObject>(out).at(0).rref, bad);
}

// --- Forks and fences ---

TEST_F(OwnerTableTest, OnlyTheUserDeletesItsFork) {
  const RRefId rref = annas_object();
  table.on_fork_delete(kBert, {rref, creators_fork(rref)}, out);
  EXPECT_TRUE(table.has_fork(rref, creators_fork(rref)));
}

TEST_F(OwnerTableTest, RemembersSettledBirthsInOneRange) {
  const RRefId rref = annas_object();
  for (std::uint64_t n = 1; n <= 1000; ++n) {
    add(kBert, rref, fork(kAnna, n), kAnna);
    table.on_fork_delete(kBert, {rref, fork(kAnna, n)}, out);
  }
  EXPECT_EQ(table.birth_ranges(), 1U);
  EXPECT_EQ(add(kBert, rref, fork(kAnna, 500), kAnna).verdict, Verdict::ended);
}

TEST_F(OwnerTableTest, ForksOfADroppedAgentsCreationsAreRefused) {
  table.drop_agent(kAnna, out);
  EXPECT_EQ(add(kBert, object(kAnna, 0), fork(kBert, 0), kBert).verdict, Verdict::ended);
  EXPECT_EQ(table.begin_request(kBert, request_target(object(kAnna, 0)), out), Access::gone);
  EXPECT_EQ(table.begin_request(kBert, request_target({kOwner.incarnation, 77}), out), Access::gone);
}

TEST_F(OwnerTableTest, FencedForkIsNeverRegistered) {
  const RRefId rref = annas_object();
  EXPECT_EQ(table.on_fork_fence(kAnna, {rref, fork(kAnna, 1)}, out).verdict, Verdict::ended);
  EXPECT_EQ(add(kBert, rref, fork(kAnna, 1), kAnna).verdict, Verdict::ended);
  EXPECT_EQ(table.birth_ranges(), 1U);
}

TEST_F(OwnerTableTest, OnlyTheParentFences) {
  const RRefId rref = annas_object();
  table.on_fork_fence(kCora, {rref, fork(kAnna, 1)}, out);
  EXPECT_EQ(add(kBert, rref, fork(kAnna, 1), kAnna).verdict, Verdict::registered);
  EXPECT_EQ(add(kBert, rref, fork(kAnna, 2), kCora).verdict, Verdict::ended)
      << "a birth of Anna's, said to be Cora's";
}

TEST_F(OwnerTableTest, ArgumentOfItsOwnObjectIsAHandle) {
  const RRefId rref = annas_object();
  const Handover handover{rref, fork(kAnna, 1), kOwner, kAnna, false};
  EXPECT_EQ(table.receive(kAnna, handover, out), Access::ready);
  EXPECT_EQ(all<Send<ChildSettled>>(out).at(0).to, kAnna);
  EXPECT_EQ(table.receive(kAnna, handover, out), Access::gone) << "a hand-over arrives once";
  table.on_fork_delete(kAnna, {rref, creators_fork(rref)}, out);
  EXPECT_EQ(count<DeleteObject>(out), 0U);
  table.unhold(rref, out);
  EXPECT_EQ(count<DeleteObject>(out), 1U);
}

TEST_F(OwnerTableTest, FencedArgumentIsRefused) {
  const RRefId rref = annas_object();
  table.on_fork_fence(kAnna, {rref, fork(kAnna, 1)}, out);
  EXPECT_EQ(table.receive(kAnna, {rref, fork(kAnna, 1), kOwner, kAnna, false}, out), Access::gone);
}

TEST_F(OwnerTableTest, LendThatWasNotSentIsUndone) {
  const RRefId rref = table.create_local({});
  const auto lent = table.lend(rref, kBert, out);
  table.unhold(rref, out);
  table.lend_ended(*lent, Outcome::not_sent, out);
  EXPECT_EQ(count<DeleteObject>(out), 1U);
  EXPECT_EQ(count<Send<ForkProbe>>(out), 1U) << "Bert learns that the number is used up";
  table.probe_answered({rref, lent->fork}, {false}, out);
}

TEST_F(OwnerTableTest, EndOfAConnectionQueriesLendsInFlight) {
  const RRefId rref = table.create_local({});
  const auto accepted = table.lend(rref, kBert, out);
  const auto replied = table.lend(rref, kBert, out);
  table.lend(rref, kCora, out);
  table.lend_ended(*accepted, Outcome::accepted, out);
  out.clear();
  table.connection_ended(kBert, out);
  table.connection_ended(kBert, out);
  ASSERT_EQ(count<Send<ForkProbe>>(out), 1U);
  EXPECT_EQ(all<Send<ForkProbe>>(out)[0].message.fork, replied->fork);
}

TEST_F(OwnerTableTest, LendOfAnUnfinishedObjectIsNotSettled) {
  const RRefId rref = table.create_local({}, ObjectState::creating);
  const auto lent = table.lend(rref, kBert, out);
  EXPECT_FALSE(lent->settled);
  table.finish_create(rref, "no", out);
  EXPECT_EQ(add(kBert, rref, lent->fork, kOwner), (Standing{Verdict::registered, "no"}));
  EXPECT_EQ(add(kCora, rref, lent->fork, kOwner).verdict, Verdict::ended) << "Bert's fork";
}

// --- Deaths ---

TEST_F(OwnerTableTest, DeathOfTheCreatorFailsTheExpectedObject) {
  const RRefId rref = object(kAnna, 0);
  add(kCora, rref, fork(kBert, 0), kBert);
  const auto watched = all<WatchAgent>(out);
  ASSERT_EQ(watched.size(), 3U);
  EXPECT_EQ(watched[0].agent, kCora);
  EXPECT_EQ(watched[1].agent, kBert) << "the agent that made the fork";
  EXPECT_EQ(watched[2].agent, kAnna) << "the agent that is to create the object";
  table.begin_request(kCora, request_target(rref), out);
  out.clear();
  table.drop_agent(kAnna, out);
  EXPECT_EQ(all<Send<CreationFailed>>(out).at(0).to, kCora);
  EXPECT_EQ(count<ObjectFailed>(out), 1U);
  EXPECT_EQ(table.begin_create(kAnna, rref, {}, out).verdict, Verdict::lease_lost);
  table.unhold(rref, out);
  table.on_fork_delete(kCora, {rref, fork(kBert, 0)}, out);
  EXPECT_TRUE(table.live_objects().empty());
}

TEST_F(OwnerTableTest, DroppedAgentIsRefusedForever) {
  const RRefId rref = annas_object();
  const RRefId own = table.create_local({});
  table.drop_agent(kAnna, out);
  EXPECT_EQ(add(kAnna, own, fork(kAnna, 1), kAnna).verdict, Verdict::lease_lost);
  EXPECT_EQ(table.on_fork_delete(kAnna, {rref, creators_fork(rref)}, out).verdict, Verdict::lease_lost);
  EXPECT_EQ(table.on_fork_fence(kAnna, {rref, fork(kAnna, 2)}, out).verdict, Verdict::lease_lost);
  EXPECT_EQ(table.begin_request(kAnna, request_target(own), out), Access::lease_lost);
  EXPECT_FALSE(table.lend(own, kAnna, out));
  out.clear();
  EXPECT_EQ(table.receive(kAnna, {own, fork(kAnna, 3), kOwner, kAnna, false}, out), Access::lease_lost);
  EXPECT_FALSE(all<Send<ChildSettled>>(out).at(0).message.by_owner) << "so that Anna asks, and learns of it";
  // Another incarnation of the same name is a different agent.
  EXPECT_TRUE(table.lend(own, {"anna", 2001}, out));
}

TEST_F(OwnerTableTest, LateForksOfADroppedAgentAreRefused) {
  const RRefId rref = annas_object();
  add(kBert, rref, fork(kAnna, 1), kAnna);
  table.drop_agent(kAnna, out);
  EXPECT_EQ(add(kCora, rref, fork(kAnna, 2), kAnna).verdict, Verdict::ended);
  EXPECT_EQ(add(kBert, rref, fork(kAnna, 1), kAnna).verdict, Verdict::registered) << "it came in time";
  EXPECT_EQ(table.birth_ranges(), 0U);
}

TEST_F(OwnerTableTest, EachAgentIsWatchedOnce) {
  const RRefId rref = annas_object();
  add(kBert, rref, fork(kAnna, 1), kAnna);
  add(kBert, rref, fork(kAnna, 2), kAnna);
  ASSERT_EQ(count<WatchAgent>(out), 1U);
  EXPECT_EQ(all<WatchAgent>(out)[0].agent, kBert);
}

// --- Misuse ---

TEST_F(OwnerTableTest, InvalidCallsThrow) {
  EXPECT_THROW(table.unhold({1, 2}, out), std::logic_error);
  EXPECT_THROW(table.lend({1, 2}, kBert, out), std::logic_error);
  const RRefId rref = annas_object();
  EXPECT_THROW(table.unhold(rref, out), std::logic_error);
  EXPECT_THROW(table.hold(rref), std::logic_error);
  EXPECT_THROW(table.finish_create(rref, std::nullopt, out), std::logic_error);
}

// --- Another agent with the same incarnation, which ids do not tell apart ---

const rpc::AgentId kMallory{"mallory", 2000};

TEST_F(OwnerTableTest, TheLossOfAnAgentDoesNotConcernAnotherOne) {
  const RRefId rref = annas_object();
  add(kBert, object(kAnna, 5), fork(kAnna, 6), kAnna);  // expected from Anna
  EXPECT_TRUE(table.drop_agent(kMallory, out));
  EXPECT_TRUE(table.has_fork(rref, creators_fork(rref)));
  EXPECT_EQ(count<Send<CreationFailed>>(out), 0U);
  EXPECT_EQ(table.begin_create(kAnna, object(kAnna, 5), {}, out).verdict, Verdict::registered);
  EXPECT_EQ(table.begin_create(kMallory, object(kAnna, 7), {}, out).verdict, Verdict::lease_lost);
  EXPECT_TRUE(table.drop_agent(kAnna, out));
  EXPECT_FALSE(table.has_fork(rref, creators_fork(rref)));
}

TEST_F(OwnerTableTest, AnAgentSettlesOnlyItsOwnBirths) {
  const RRefId rref = annas_object();
  add(kBert, rref, fork(kAnna, 1), kAnna);
  EXPECT_EQ(table.begin_create(kMallory, rref, {}, out).verdict, Verdict::ended) << "it exists";
  table.on_fork_fence(kMallory, {object(kAnna, 3), creators_fork(object(kAnna, 3))}, out);
  table.on_fork_delete(kMallory, {rref, creators_fork(rref)}, out);
  EXPECT_EQ(add(kCora, rref, fork(kAnna, 1), kMallory).verdict, Verdict::ended) << "the fork is Bert's";
  EXPECT_EQ(table.live_objects().at(0).forks.size(), 2U);
  EXPECT_EQ(table.live_objects().at(0).state, ObjectState::live);
  EXPECT_EQ(table.begin_create(kBert, object(kAnna, 3), {}, out).verdict, Verdict::ended) << "not Bert's id";
  EXPECT_EQ(table.begin_create(kAnna, object(kAnna, 3), {}, out).verdict, Verdict::registered);
}

// --- Memory ---

TEST_F(OwnerTableTest, OnlyTheLatestDroppedAgentsAreRemembered) {
  const auto agent = [](std::uint64_t n) { return rpc::AgentId{"visitor", 5000 + n}; };
  for (std::uint64_t n = 0; n <= rpc::max_lost_remembered; ++n) table.drop_agent(agent(n), out);
  EXPECT_FALSE(table.is_dropped(agent(0)));
  EXPECT_TRUE(table.is_dropped(agent(1)));
  EXPECT_TRUE(table.is_dropped(agent(rpc::max_lost_remembered)));
}

}  // namespace
}  // namespace weft::rref::protocol::protocol_owner_table_test

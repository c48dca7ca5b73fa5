// Cases that the simulation does not reach: other agents' forks, misuse, limits.
#include <gtest/gtest.h>
#include <weft/rref/protocol/user_table.h>

#include <stdexcept>

#include "tests/rref/protocol/support.h"

namespace weft::rref::protocol::protocol_user_table_test {
namespace {

const rpc::AgentId kOwner{"owner", 1000};
const rpc::AgentId kAnna{"anna", 2000};  // the agent whose table is tested
const rpc::AgentId kBert{"bert", 3000};

const Standing kRegistered{Verdict::registered, ""};
const Standing kEnded{Verdict::ended, ""};
const Standing kLeaseLost{Verdict::lease_lost, ""};

class UserTableTest : public testing::Test {
 protected:
  UserTable table{kAnna};
  Actions out;

  // A fork of Anna's own creation, confirmed.
  ForkId created() {
    const ForkId fork = table.create(kOwner, out)->fork;
    table.create_ended(fork, Outcome::accepted, out);
    out.clear();
    return fork;
  }
  // The n-th fork that Bert hands to Anna, of an object of his at the owner.
  Handover from_bert(std::uint64_t n) {
    return {{3000, birth_base(1000)}, {3000, birth_base(1000) + 1 + n}, kOwner, kBert, false};
  }
  // The n-th fork that the owner lends to Anna, of an object that the owner itself created.
  Handover lent(std::uint64_t n, bool settled = true) {
    return {{1000, birth_base(1000)}, {1000, lend_base(2000) + n}, kOwner, kOwner, settled};
  }
  ForkAdd asked() { return all<Send<ForkAdd>>(out).at(0).message; }
};

// --- Creation ---

TEST_F(UserTableTest, CreationWithoutAReplyIsFenced) {
  for (const Outcome outcome : {Outcome::unknown, Outcome::not_sent}) {
    out.clear();
    const auto target = table.create(kOwner, out);
    table.create_ended(target->fork, outcome, out);
    ASSERT_EQ(count<Send<ForkFence>>(out), 1U);
    EXPECT_EQ(count<ForkFailed>(out), 0U);
    table.answered(kOwner, ForkFence{target->rref, target->fork}, kEnded, out);
    EXPECT_EQ(all<ForkFailed>(out).at(0).fault, Fault::creation_failed);
    table.release(target->fork, out);
    EXPECT_EQ(count<Send<ForkDelete>>(out), 0U) << "the owner never knew it";
    EXPECT_TRUE(table.live_forks().empty());
  }
}

TEST_F(UserTableTest, OnlyTheOwnerReportsAFailure) {
  const ForkId fork = created();
  table.on_creation_failed(kBert, {{}, fork, "a lie"}, out);
  EXPECT_EQ(table.find(fork)->fault, Fault::none);
}

// --- Forks from other users ---

TEST_F(UserTableTest, RefusedForkIsNotDeletedAtTheOwner) {
  table.receive(kBert, from_bert(0), out);
  table.answered(kOwner, asked(), kEnded, out);
  EXPECT_EQ(all<ForkFailed>(out).at(0).fault, Fault::refused);
  EXPECT_EQ(count<Send<ChildSettled>>(out), 1U);
  table.release(from_bert(0).fork, out);
  EXPECT_EQ(count<Send<ForkDelete>>(out), 0U);
  EXPECT_TRUE(table.live_forks().empty());
}

TEST_F(UserTableTest, EachHandOverIsASeparateFork) {
  table.receive(kBert, from_bert(0), out);
  table.receive(kBert, from_bert(1), out);
  EXPECT_EQ(table.live_forks().size(), 2U);
  EXPECT_EQ(table.receive(kBert, from_bert(1), out), Fault::refused) << "a repeated frame";
  EXPECT_EQ(table.find(from_bert(1).fork)->handles, 1U);
}

TEST_F(UserTableTest, AnswerOfAnEarlierLifeDoesNotConfirm) {
  table.receive(kBert, from_bert(0), out);
  const ForkAdd first = asked();
  table.answered(kOwner, first, kRegistered, out);
  table.release(from_bert(0).fork, out);
  table.answered(kOwner, ForkDelete{from_bert(0).rref, from_bert(0).fork}, kEnded, out);
  out.clear();
  table.receive(kBert, from_bert(0), out);  // the frame again, late
  table.answered(kOwner, first, kRegistered, out);
  EXPECT_EQ(count<ForkConfirmed>(out), 0U);
  table.answered(kOwner, asked(), kEnded, out);
  EXPECT_EQ(count<ForkFailed>(out), 1U);
}

TEST_F(UserTableTest, HandOverFromAnotherAgentThanItsMakerIsRefused) {
  Handover forged = from_bert(0);
  forged.fork.origin = 9999;
  EXPECT_EQ(table.receive(kBert, forged, out), Fault::refused);
  EXPECT_EQ(table.receive(kBert, lent(0), out), Fault::refused) << "only an owner lends";
}

// --- Forks from the owner ---

TEST_F(UserTableTest, LentForkOfAnUnfinishedObjectIsAddedAtTheOwner) {
  table.receive(kOwner, lent(0, false), out);
  EXPECT_EQ(count<ForkConfirmed>(out), 0U);
  table.answered(kOwner, asked(), {Verdict::registered, "no"}, out);
  EXPECT_EQ(all<ForkFailed>(out).at(0).fault, Fault::creation_failed);
  EXPECT_EQ(count<Send<ChildSettled>>(out), 0U);
}

TEST_F(UserTableTest, AProbeFromAnUnknownOwnerIsRemembered) {
  EXPECT_FALSE(table.on_fork_probe(kOwner, {lent(0).rref, lent(0).fork}, out).held);
  EXPECT_EQ(all<WatchAgent>(out).at(0).agent, kOwner);
  EXPECT_EQ(table.receive(kOwner, lent(0), out), Fault::refused);
}

// --- Handing over ---

TEST_F(UserTableTest, ParentOutlivesItsChildsConfirmation) {
  const ForkId parent = created();
  const auto child = table.hand_over(parent, kBert);
  EXPECT_EQ(child->fork.origin, kAnna.incarnation);
  table.release(parent, out);
  EXPECT_EQ(count<Send<ForkDelete>>(out), 0U);
  table.on_child_settled(kOwner, {child->fork, true}, out);
  EXPECT_EQ(count<Send<ForkDelete>>(out), 0U) << "not from whom it was given to";
  table.on_child_settled(kBert, {child->fork, true}, out);
  EXPECT_EQ(count<Send<ForkDelete>>(out), 1U);
  table.on_child_settled(kBert, {child->fork, true}, out);
  EXPECT_EQ(count<Send<ForkDelete>>(out), 1U) << "a repeated message";
}

TEST_F(UserTableTest, AcceptedCallSettlesItsChildren) {
  const ForkId parent = created();
  const auto child = table.hand_over(parent, kBert);
  table.release(parent, out);
  table.hand_over_ended(child->fork, Outcome::accepted, out);
  EXPECT_EQ(count<Send<ForkFence>>(out), 0U);
  EXPECT_EQ(count<Send<ForkDelete>>(out), 1U);
}

TEST_F(UserTableTest, ChildThatTheUserGaveUpIsFenced) {
  const ForkId parent = created();
  const auto child = table.hand_over(parent, kBert);
  table.on_child_settled(kBert, {child->fork, false}, out);
  EXPECT_EQ(count<Send<ForkFence>>(out), 1U);
  EXPECT_EQ(table.find(parent)->children, 1U);
}

TEST_F(UserTableTest, ChildThatWasNotSentEndsAtOnce) {
  const ForkId parent = created();
  const auto child = table.hand_over(parent, kBert);
  table.release(parent, out);
  table.hand_over_ended(child->fork, Outcome::not_sent, out);
  EXPECT_EQ(count<Send<ForkFence>>(out), 1U) << "the owner learns that the number is used up";
  EXPECT_EQ(count<Send<ForkDelete>>(out), 1U);
}

TEST_F(UserTableTest, ChildInFlightIsFencedOnceBeforeItsParentIsReleased) {
  const ForkId parent = created();
  const auto child = table.hand_over(parent, kBert);
  table.release(parent, out);
  table.connection_ended(kOwner, out);
  EXPECT_EQ(count<Send<ForkFence>>(out), 0U) << "the child is in flight to another agent";
  table.connection_ended(kBert, out);
  table.hand_over_ended(child->fork, Outcome::unknown, out);
  table.agent_lost(kBert, out);
  ASSERT_EQ(count<Send<ForkFence>>(out), 1U);
  EXPECT_EQ(all<Send<ForkFence>>(out)[0].message.fork, child->fork);
  EXPECT_EQ(count<Send<ForkDelete>>(out), 0U);
  table.answered(kOwner, ForkFence{child->rref, child->fork}, kRegistered, out);
  EXPECT_EQ(count<Send<ForkDelete>>(out), 1U);
}

// --- Losses ---

TEST_F(UserTableTest, ALeavingAgentReleasesForksThatStillHaveHandles) {
  const ForkId idle = created(), busy = created();
  const ForkId pending = table.create(kOwner, out)->fork;
  table.begin_request(busy);
  out.clear();
  table.leave(out);
  ASSERT_EQ(count<Send<ForkDelete>>(out), 1U);
  const ForkDelete gone = all<Send<ForkDelete>>(out).at(0).message;
  EXPECT_EQ(gone.fork, idle);
  EXPECT_EQ(count<ForkFailed>(out), 0U) << "it was confirmed";
  EXPECT_EQ(table.begin_request(idle), Fault::released);
  EXPECT_FALSE(table.hand_over(idle, kBert).has_value());
  EXPECT_TRUE(table.has_ending_forks());
  table.answered(kOwner, gone, kEnded, out);
  EXPECT_EQ(table.find(idle)->stage, Stage::ended);
  table.release(idle, out);
  EXPECT_FALSE(table.find(idle).has_value());

  table.end_request(busy, out);
  table.create_ended(pending, Outcome::accepted, out);
  ASSERT_EQ(count<Send<ForkDelete>>(out), 3U);
  for (const auto& sent : all<Send<ForkDelete>>(out)) table.answered(kOwner, sent.message, kEnded, out);
  EXPECT_FALSE(table.has_ending_forks());
  table.release(busy, out);
  table.release(pending, out);
  EXPECT_TRUE(table.live_forks().empty());
}

TEST_F(UserTableTest, LostOwnerFailsEveryFork) {
  const ForkId confirmed = created();
  table.receive(kBert, from_bert(0), out);
  const auto child = table.hand_over(confirmed, kBert);
  out.clear();
  table.agent_lost(kOwner, out);
  ASSERT_EQ(count<ForkFailed>(out), 2U);
  EXPECT_EQ(all<ForkFailed>(out)[0].fault, Fault::owner_lost);
  ASSERT_EQ(count<Send<ChildSettled>>(out), 1U);
  EXPECT_FALSE(all<Send<ChildSettled>>(out)[0].message.by_owner) << "Bert may know better, and has to ask";
  EXPECT_EQ(table.begin_request(confirmed), Fault::owner_lost);
  EXPECT_FALSE(table.hand_over(confirmed, kBert));
  table.hand_over_ended(child->fork, Outcome::unknown, out);  // too late to have an effect
  table.release(confirmed, out);
  table.release(from_bert(0).fork, out);
  EXPECT_TRUE(table.live_forks().empty());
  EXPECT_EQ(count<Send<ForkDelete>>(out), 0U);
  EXPECT_EQ(count<Send<ForkFence>>(out), 0U);
}

TEST_F(UserTableTest, ForksFromALostOwnerAreRefused) {
  table.agent_lost(kOwner, out);
  EXPECT_FALSE(table.create(kOwner, out));
  EXPECT_EQ(table.receive(kOwner, lent(0), out), Fault::owner_lost);
  EXPECT_EQ(table.receive(kBert, from_bert(0), out), Fault::owner_lost);
  EXPECT_FALSE(all<Send<ChildSettled>>(out).at(0).message.by_owner);
  EXPECT_FALSE(table.on_fork_probe(kOwner, {lent(1).rref, lent(1).fork}, out).held);
  EXPECT_TRUE(table.live_forks().empty());
}

TEST_F(UserTableTest, AnyReplyMayReportALostLease) {
  const ForkId one = created(), two = created();
  table.release(two, out);
  table.answered(kOwner, all<Send<ForkDelete>>(out).at(0).message, kLeaseLost, out);
  EXPECT_EQ(table.find(one)->fault, Fault::lease_lost);
  EXPECT_FALSE(table.find(two));
  EXPECT_FALSE(table.create(kOwner, out));

  UserTable added{kAnna};
  added.receive(kBert, from_bert(0), out);
  added.answered(kOwner, asked(), kLeaseLost, out);
  EXPECT_EQ(added.find(from_bert(0).fork)->fault, Fault::lease_lost);

  UserTable fenced{kAnna};
  const auto target = fenced.create(kOwner, out);
  fenced.create_ended(target->fork, Outcome::unknown, out);
  fenced.answered(kOwner, ForkFence{target->rref, target->fork}, kLeaseLost, out);
  EXPECT_EQ(fenced.find(target->fork)->fault, Fault::lease_lost);
}

// --- Misuse ---

TEST_F(UserTableTest, InvalidCallsThrow) {
  EXPECT_THROW(table.release({1, 2}, out), std::logic_error);
  const ForkId fork = created();
  EXPECT_THROW(table.end_request(fork, out), std::logic_error);
  table.release(fork, out);
  EXPECT_THROW(table.retain(fork), std::logic_error) << "it is on its way out";
  EXPECT_THROW(table.begin_request(fork), std::logic_error);
  EXPECT_THROW(table.hand_over(fork, kBert), std::logic_error);
  Handover own = lent(0);
  own.owner = kAnna;
  EXPECT_THROW(table.receive(kBert, own, out), std::logic_error);
}

// --- Another agent with the same incarnation, which ids do not tell apart ---

const rpc::AgentId kMallory{"mallory", 1000};

TEST_F(UserTableTest, TheLossOfAnOwnerDoesNotConcernAnotherOne) {
  const ForkId fork = created();
  table.agent_lost(kMallory, out);
  EXPECT_EQ(table.find(fork)->fault, Fault::none);
  EXPECT_TRUE(table.create(kOwner, out));
  EXPECT_FALSE(table.create(kMallory, out));
}

TEST_F(UserTableTest, OnlyTheOwnerLendsItsObjects) {
  EXPECT_EQ(table.receive(kMallory, lent(0), out), Fault::none) << "as a fork that another user hands over";
  EXPECT_FALSE(
      table.on_fork_probe(kMallory, {{1000, birth_base(1000)}, {1000, lend_base(2000) + 1}}, out).held);
  EXPECT_EQ(table.receive(kOwner, lent(1), out), Fault::none) << "the probe was not the owner's";
}

// --- Memory ---

TEST_F(UserTableTest, OnlyTheLatestLostOwnersAreRemembered) {
  const auto owner = [](std::uint64_t n) { return rpc::AgentId{"visitor", 5000 + n}; };
  for (std::uint64_t n = 0; n <= rpc::max_lost_remembered; ++n) table.agent_lost(owner(n), out);
  EXPECT_TRUE(table.create(owner(0), out)) << "forgotten: it is watched, and lost again";
  EXPECT_FALSE(table.create(owner(1), out));
}

}  // namespace
}  // namespace weft::rref::protocol::protocol_user_table_test

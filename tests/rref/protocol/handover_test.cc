// The four hand-overs with the messages that docs/internals/rref_protocol.md shows for them, and no others.
#include <gtest/gtest.h>
#include <weft/rref/protocol/owner_table.h>
#include <weft/rref/protocol/user_table.h>

#include "tests/rref/protocol/support.h"

namespace weft::rref::protocol::protocol_handover_test {
namespace {

const rpc::AgentId kAnna{"anna", 2000};
const rpc::AgentId kBert{"bert", 3000};
const rpc::AgentId kOwner{"owner", 1000};

class HandoverTest : public testing::Test {
 protected:
  OwnerTable owner{kOwner};
  UserTable anna{kAnna};
  UserTable bert{kBert};
  std::size_t messages = 0;  // that were sent
  std::size_t deleted = 0;   // objects

  UserTable& user(const rpc::AgentId& id) { return id == kAnna ? anna : bert; }

  // Delivers every message and the replies, until no message is left.
  void deliver(const rpc::AgentId& from, const Actions& actions) {
    deleted += count<DeleteObject>(actions);
    for (const auto& send : all<Send<ForkAdd>>(actions)) {
      ++messages;
      Actions out, back;
      user(from).answered(kOwner, send.message, owner.on_fork_add(from, send.message, out), back);
      deliver(kOwner, out);
      deliver(from, back);
    }
    for (const auto& send : all<Send<ForkDelete>>(actions)) {
      ++messages;
      Actions out, back;
      user(from).answered(kOwner, send.message, owner.on_fork_delete(from, send.message, out), back);
      deliver(kOwner, out);
      deliver(from, back);
    }
    for (const auto& send : all<Send<ChildSettled>>(actions)) {
      ++messages;
      deliver(send.to, after([&](Actions& out) { user(send.to).on_child_settled(from, send.message, out); }));
    }
  }
  Handover created_by_anna() {
    Actions out;
    const Handover target = *anna.create(kOwner, out);
    EXPECT_EQ(owner.begin_create(kAnna, target.rref, {"Net", ""}, out).verdict, Verdict::registered);
    owner.finish_create(target.rref, std::nullopt, out);
    anna.create_ended(target.fork, Outcome::accepted, out);
    deliver(kAnna, out);
    return target;
  }
};

TEST_F(HandoverTest, Creation) {
  const Handover target = created_by_anna();
  EXPECT_EQ(messages, 0U) << "the creation itself says all";
  deliver(kAnna, after([&](Actions& out) { anna.release(target.fork, out); }));
  EXPECT_EQ(messages, 1U) << "ForkDelete";
  EXPECT_EQ(deleted, 1U);
}

TEST_F(HandoverTest, OwnerToOwner) {
  const RRefId rref = owner.create_local({});
  owner.hold(rref);  // the handler's argument
  deliver(kOwner, after([&](Actions& out) { owner.unhold(rref, out); }));
  deliver(kOwner, after([&](Actions& out) { owner.unhold(rref, out); }));
  EXPECT_EQ(messages, 0U);
  EXPECT_EQ(deleted, 1U);
}

TEST_F(HandoverTest, OwnerToUser) {
  const RRefId rref = owner.create_local({});
  Actions out;
  const Handover lent = *owner.lend(rref, kBert, out);
  deliver(kOwner, after([&](Actions& more) { owner.unhold(rref, more); }));
  deliver(kBert, after([&](Actions& more) { EXPECT_EQ(bert.receive(kOwner, lent, more), Fault::none); }));
  EXPECT_EQ(bert.find(lent.fork)->stage, Stage::confirmed);
  EXPECT_EQ(messages, 0U);
  owner.lend_ended(lent, Outcome::accepted, out);
  deliver(kBert, after([&](Actions& more) { bert.release(lent.fork, more); }));
  EXPECT_EQ(messages, 1U) << "ForkDelete";
  EXPECT_EQ(deleted, 1U);
}

TEST_F(HandoverTest, UserToOwner) {
  const Handover target = created_by_anna();
  const Handover child = *anna.hand_over(target.fork, kOwner);
  deliver(kAnna, after([&](Actions& out) { anna.release(target.fork, out); }));
  EXPECT_EQ(messages, 0U) << "Anna's fork is kept for the hand-over";
  deliver(kOwner, after([&](Actions& out) { EXPECT_EQ(owner.receive(kAnna, child, out), Access::ready); }));
  EXPECT_EQ(messages, 2U) << "ChildSettled, ForkDelete";
  EXPECT_EQ(deleted, 0U) << "the owner's handle is left";
  deliver(kOwner, after([&](Actions& out) { owner.unhold(target.rref, out); }));
  EXPECT_EQ(deleted, 1U);
}

TEST_F(HandoverTest, UserToUser) {
  const Handover target = created_by_anna();
  const Handover child = *anna.hand_over(target.fork, kBert);
  deliver(kAnna, after([&](Actions& out) { anna.release(target.fork, out); }));
  EXPECT_EQ(messages, 0U) << "Anna's fork is kept for its child";
  Actions asked;
  EXPECT_EQ(bert.receive(kAnna, child, asked), Fault::none);
  EXPECT_EQ(bert.find(child.fork)->stage, Stage::pending);
  deliver(kBert, asked);
  EXPECT_EQ(bert.find(child.fork)->stage, Stage::confirmed);
  EXPECT_EQ(messages, 3U) << "ForkAdd, ChildSettled, and Anna's ForkDelete";
  EXPECT_EQ(deleted, 0U);
  deliver(kBert, after([&](Actions& out) { bert.release(child.fork, out); }));
  EXPECT_EQ(messages, 4U);
  EXPECT_EQ(deleted, 1U);
}

TEST_F(HandoverTest, RequestOutlivesTheLastHandle) {
  const Handover target = created_by_anna();
  EXPECT_EQ(anna.begin_request(target.fork), Fault::none);
  const Handover through = anna.describe(target.fork);
  deliver(kAnna, after([&](Actions& out) { anna.release(target.fork, out); }));
  Actions out;
  EXPECT_EQ(owner.begin_request(kAnna, through, out), Access::ready);
  deliver(kOwner, after([&](Actions& more) { owner.unhold(target.rref, more); }));
  EXPECT_EQ(deleted, 0U);
  deliver(kAnna, after([&](Actions& more) { anna.end_request(target.fork, more); }));
  EXPECT_EQ(deleted, 1U);
}

}  // namespace
}  // namespace weft::rref::protocol::protocol_handover_test

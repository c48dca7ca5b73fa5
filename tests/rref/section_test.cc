#include <weft/rref/section.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/messages.h"

namespace weft::rref::section_test {
namespace {

using protocol::Handover;
using rpc::AgentId;

const AgentId sender{"sender", 11}, receiver{"receiver", 22}, third{"third", 33};

// The section of a message for `receiver` (or for any of its incarnations, if `bound` is false), as `by`
// reads it; and the size of the header.
struct Sent {
  RRefSection section;
  std::size_t bytes = 0;
};
Sent sent(const RRefSection& section, bool bound = true, const AgentId& by = receiver) {
  const auto message = rpc::OutgoingMessage::request(0);
  section.write(message->section(section_key, true), sender, bound ? std::optional(receiver) : std::nullopt);
  Sent sent{.bytes = message->header_bytes()};
  const auto incoming = test::received(message->seal_request({1, 2, 0}, 3, 0));
  sent.section = RRefSection::read(*incoming->section(section_key), sender, by);
  return sent;
}
void expect_same(const RRefSection& a, const RRefSection& b) {
  EXPECT_EQ(a.target, b.target);
  EXPECT_EQ(a.result, b.result);
  EXPECT_EQ(a.site, b.site);
  EXPECT_EQ(a.name, b.name);
  EXPECT_EQ(a.carried, b.carried);
  EXPECT_EQ(a.owner_addresses, b.owner_addresses);
  EXPECT_EQ(a.local, b.local);
}
Handover handover(const AgentId& owner, const AgentId& creator, bool settled = false) {
  return {{11, ~std::uint64_t{0}}, {std::uint64_t{1} << 63, 7}, owner, creator, settled};
}

TEST(RRefSection, ArrivesAsItWasSent) {
  expect_same(sent({}).section, {});
  for (const AgentId& owner : {receiver, sender, third, AgentId{}})
    for (const AgentId& creator : {receiver, sender, third, AgentId{}})
      for (const bool bound : {true, false}) {
        RRefSection section;
        section.target = handover(owner, creator);
        section.result = handover(owner, creator, true);
        expect_same(sent(section, bound).section, section);
        section.site = "train.cc:12";
        section.name = "table";
        section.carried = {handover(creator, owner), handover(owner, creator, true)};
        section.owner_addresses = {"", "tcp://127.0.0.1:1 shm://x"};
        section.local = {0, 9};
        expect_same(sent(section, bound).section, section);
      }
}

// If the message may reach another incarnation of its receiver, that incarnation must not consider itself the
// owner.
TEST(RRefSection, NamesTheIncarnationOfItsReceiver) {
  RRefSection section;
  section.target = handover(receiver, sender);
  EXPECT_EQ(sent(section, false, {"receiver", 44}).section.target->owner, receiver);
}

TEST(RRefSection, OmitsAgentsThatTheMessageNames) {
  RRefSection created, foreign;
  created.result = handover(receiver, sender);
  foreign.result = handover(third, third);
  EXPECT_LE(sent(created).bytes, sent({}).bytes + 128);
  EXPECT_GT(sent(foreign).bytes, sent(created).bytes + 128);
}

}  // namespace
}  // namespace weft::rref::section_test

#include <weft/rpc/job/membership/roster.h>

#include <gtest/gtest.h>

namespace weft::rpc::roster_test {
namespace {

MemberRecord member(const std::string& name, MemberState state, std::uint64_t incarnation = 7) {
  MemberRecord record;
  record.name = name;
  record.incarnation = incarnation;
  record.rank = 0;
  record.state = state;
  return record;
}

Roster roster(const std::vector<MemberRecord>& members) {
  StoreView view;
  for (const MemberRecord& one : members) view.entries.emplace("members/" + one.name, to_text(one));
  return Roster(view);
}

std::vector<MemberEvent> events_between(const Roster& before, const Roster& after) {
  return rpc::events_between(before.members(), after.members());
}

std::string text(const std::vector<MemberEvent>& events) {
  std::string text;
  for (const auto& [change, member] : events)
    text += (text.empty() ? "" : ", ") + member.name + "#" + std::to_string(member.incarnation) + " " +
            std::string(to_string(change));
  return text;
}

// --- Records ---

TEST(Roster, RecordsRoundTrip) {
  MemberRecord whole = member("worker 1", MemberState::serving, ~std::uint64_t{0});
  whole.rank = 3;
  whole.addresses = {"tcp://127.0.0.1:1", "unix:///tmp/a b%\n"};
  whole.metadata = {{"gpu", "H200"}, {"", ""}, {"a=b\n", std::string("1%=\0\r2\xc3\xa4", 8)}};
  whole.before = EarlierLife{5, true};
  const std::string record = to_text(whole);
  EXPECT_EQ(record,
            "serving rank 3 incarnation 18446744073709551615\n"
            "at tcp://127.0.0.1:1\nat unix:///tmp/a b%25%0a\n"
            "with =\nwith a%3db%0a=1%25=%00%0d2\xc3\xa4\nwith gpu=H200\nafter 5 left\n");
  const MemberRecord read = from_text("worker 1", record);
  EXPECT_EQ(read.id(), whole.id());
  EXPECT_EQ(read.rank, 3U);
  EXPECT_EQ(read.state, MemberState::serving);
  EXPECT_EQ(read.addresses, whole.addresses);
  EXPECT_EQ(read.metadata, whole.metadata);
  ASSERT_TRUE(read.before);
  EXPECT_EQ(read.before->incarnation, 5U);
  EXPECT_TRUE(read.before->left);
}

TEST(Roster, RankAndAllOtherFieldsAreOptional) {
  MemberRecord bare = member("a", MemberState::joined);
  bare.rank.reset();
  EXPECT_EQ(to_text(bare), "joined rank none incarnation 7\n");
  const MemberRecord read = from_text("a", to_text(bare));
  EXPECT_EQ(read.rank, std::nullopt);
  EXPECT_TRUE(read.addresses.empty());
  EXPECT_TRUE(read.metadata.empty());
  EXPECT_FALSE(read.before);
  // A line of a later release is ignored.
  EXPECT_EQ(from_text("a", "joined rank 1 incarnation 2\nzone b\n").rank, 1U);
}

// An earlier release reads the record as that of a serving member.
TEST(Roster, AReleasedMemberIsMarkedInASeparateLine) {
  const std::string record = to_text(member("a", MemberState::released));
  EXPECT_EQ(record.substr(record.find('\n')), "\nhas released\n");
  EXPECT_TRUE(record.starts_with("serving rank"));
  EXPECT_EQ(from_text("a", record).state, MemberState::released);
  EXPECT_TRUE(from_text("a", record).here());
  EXPECT_EQ(from_text("a", "joined rank 1 incarnation 2\nhas released\n").state, MemberState::joined);
}

TEST(Roster, MalformedRecordsAreRefused) {
  const std::string good = "joined rank 1 incarnation 2\n";
  for (const std::string& bad :
       {std::string(), std::string("joined"), std::string("joined rank x incarnation 1"),
        std::string("gone rank 1 incarnation 1"), std::string("joined 1 1 1 1"),
        std::string("joined rank -1 incarnation 1"), std::string("joined rank 1 incarnation 1 more"),
        std::string("joined rank 99999999999999999999 incarnation 1"), good + "at", good + "with a",
        good + "with a=%", good + "with a=%4", good + "at %zz", good + "after x left", good + "after 1",
        good + "after 1 gone", good + "\n"})
    EXPECT_THROW(from_text("a", bad), Error) << bad;
}

TEST(Roster, AMalformedChangeIsRefused) {
  const Roster all = roster({member("a", MemberState::joined)});
  EXPECT_THROW(all.changed({2, false, {{"members/a", std::nullopt}, {"members/b", "nonsense"}}}), Error);
}

TEST(Roster, AppliesChanges) {
  Roster all = roster({member("a", MemberState::joined), member("b", MemberState::joined)});
  all.apply(all.changed(
      {2, false, {{"members/a", std::nullopt}, {"members/c", to_text(member("c", MemberState::claimed))}}}));
  EXPECT_EQ(all.find("a"), nullptr);
  EXPECT_NE(all.find("b"), nullptr);
  EXPECT_NE(all.find("c"), nullptr);
  EXPECT_EQ(all.joined(), 1U);
  all.apply(all.changed({3, true, {{"members/d", to_text(member("d", MemberState::joined))}}}));
  EXPECT_EQ(all.members().size(), 1U);
  EXPECT_EQ(all.here(), 1U);
}

// In a large job each change would otherwise cost every member a look at all records.
TEST(Roster, AChangeConcernsOnlyTheMembersThatHaveChanged) {
  Roster all = roster({member("a", MemberState::joined), member("b", MemberState::joined)});
  const MemberRecord* const unchanged = all.find("b");
  const Roster::Records after =
      all.changed({2, false, {{"members/a", to_text(member("a", MemberState::left))}}});
  const Roster::Records before = all.at(after);
  ASSERT_EQ(before.size(), 1U);
  EXPECT_EQ(before.at("a")->state, MemberState::joined);
  EXPECT_EQ(text(rpc::events_between(before, after)), "a#7 left");
  all.apply(after);
  EXPECT_EQ(all.find("b"), unchanged);
  EXPECT_EQ(all.find("a")->state, MemberState::left);
}

// --- Counts of members ---

TEST(Roster, CountsJoinedMembersEvenIfTheyAreGone) {
  const Roster all = roster({member("a", MemberState::claimed), member("b", MemberState::joined),
                             member("c", MemberState::serving), member("d", MemberState::left),
                             member("e", MemberState::lost)});
  EXPECT_EQ(all.joined(), 4U);
  EXPECT_EQ(all.here(), 2U);
  ASSERT_NE(all.find("b"), nullptr);
  EXPECT_EQ(all.find("b")->id(), (AgentId{"b", 7}));
  EXPECT_EQ(all.find("x"), nullptr);
  EXPECT_FALSE(all.find("a")->here());
  EXPECT_FALSE(all.find("a")->gone());
  EXPECT_TRUE(all.find("c")->here());
  EXPECT_TRUE(all.find("d")->gone());
  EXPECT_TRUE(all.find("e")->gone());
}

TEST(Roster, ServersDoNotWaitForEachOtherButTheHostWaitsForAll) {
  using Names = std::vector<std::string>;
  const Roster busy = roster({member("host", MemberState::serving), member("server", MemberState::serving),
                              member("trainer", MemberState::joined)});
  EXPECT_EQ(busy.awaited_by("server", false), Names{"trainer"});
  EXPECT_EQ(busy.awaited_by("host", true), (Names{"server", "trainer"}));
  EXPECT_FALSE(busy.idle("server"));
  // Only the trainer has work left. The other members have not released their references yet.
  EXPECT_TRUE(busy.idle("trainer"));
  EXPECT_EQ(busy.awaited_by("trainer", false), (Names{"host", "server"}));
  const Roster ending =
      roster({member("host", MemberState::released), member("server", MemberState::released),
              member("trainer", MemberState::serving)});
  EXPECT_TRUE(ending.idle("server"));
  EXPECT_EQ(ending.awaited_by("server", false), Names{"trainer"});
  EXPECT_EQ(ending.awaited_by("trainer", false), Names{});
  EXPECT_EQ(ending.awaited_by("host", true), (Names{"server", "trainer"}));
  const Roster done = roster({member("host", MemberState::serving), member("server", MemberState::left),
                              member("trainer", MemberState::left)});
  EXPECT_EQ(done.awaited_by("host", true), Names{});
}

// --- What has happened ---

TEST(RosterEvents, AtFirstAllPresentMembersHaveJoined) {
  const Roster now = roster({member("a", MemberState::joined), member("b", MemberState::claimed),
                             member("c", MemberState::serving), member("d", MemberState::left)});
  EXPECT_EQ(text(events_between({}, now)), "a#7 joined, c#7 joined");
  EXPECT_EQ(text(events_between(now, now)), "");
  EXPECT_EQ(text(events_between(now, {})), "a#7 lost, c#7 lost");
}

TEST(RosterEvents, LeavingAndDyingAreDistinguished) {
  const Roster before = roster({member("a", MemberState::joined), member("b", MemberState::joined),
                                member("c", MemberState::joined), member("d", MemberState::joined)});
  const Roster after = roster(
      {member("a", MemberState::left), member("b", MemberState::lost), member("d", MemberState::serving)});
  EXPECT_EQ(text(events_between(before, after)), "a#7 left, b#7 lost, c#7 lost");
  // The removal of their records is not an event: their loss was reported before.
  EXPECT_EQ(text(events_between(after, roster({member("d", MemberState::serving)}))), "");
}

TEST(RosterEvents, ANewIncarnationFollowsTheEndOfTheOldOne) {
  const Roster before = roster({member("a", MemberState::joined, 1), member("b", MemberState::joined, 1),
                                member("c", MemberState::left, 1), member("d", MemberState::joined, 1)});
  MemberRecord after_leaving = member("a", MemberState::joined, 2);
  after_leaving.before = EarlierLife{1, true};
  MemberRecord third = member("d", MemberState::joined, 3);
  third.before = EarlierLife{2, true};  // how the first one ended is not known any more
  const Roster after = roster(
      {after_leaving, member("b", MemberState::joined, 2), member("c", MemberState::joined, 2), third});
  EXPECT_EQ(text(events_between(before, after)),
            "a#1 left, a#2 joined, b#1 lost, b#2 joined, c#2 joined, d#1 lost, d#3 joined");
}

TEST(RosterEvents, AnAgentThatHasOnlyClaimedANameIsNoMember) {
  const Roster before = roster({member("a", MemberState::claimed), member("b", MemberState::joined, 1)});
  const Roster after = roster({member("b", MemberState::claimed, 2)});
  EXPECT_EQ(text(events_between(before, after)), "b#1 lost");
  EXPECT_EQ(text(events_between(after, roster({member("b", MemberState::joined, 2)}))), "b#2 joined");
}

TEST(RosterEvents, InAFixedWorldEveryRemovedRecordIsALoss) {
  const Roster before = roster(
      {member("a", MemberState::claimed), member("b", MemberState::joined), member("c", MemberState::left)});
  const auto lost = [&](const Roster& after) {
    const MemberRecord* record = loss_between(before.members(), after.members());
    return record == nullptr ? "nobody" : record->name;
  };
  EXPECT_EQ(lost(before), "nobody");
  EXPECT_EQ(lost(roster({member("a", MemberState::joined), member("b", MemberState::left)})), "nobody");
  EXPECT_EQ(lost(roster({member("b", MemberState::joined)})), "a");
  EXPECT_EQ(lost(roster({member("a", MemberState::joined)})), "b");
  EXPECT_EQ(lost(roster({member("a", MemberState::joined), member("b", MemberState::joined, 8)})), "b");
}

}  // namespace
}  // namespace weft::rpc::roster_test

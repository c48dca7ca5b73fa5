#include <weft/rpc/membership/roster.h>

#include <gtest/gtest.h>

namespace weft::rpc {
namespace {

Member member(const std::string& name, MemberState state) { return {name, 7, 0, state, {}}; }

Roster roster(const std::vector<Member>& members) {
  StoreView view;
  for (const Member& one : members) view.entries.emplace("members/" + one.name, to_record(one));
  return Roster(view);
}

TEST(Roster, RecordsTravelAsTheyAre) {
  const Member whole{
      "worker 1", ~std::uint64_t{0}, 3, MemberState::serving, {"tcp://127.0.0.1:1", "unix:///tmp/a b"}};
  const std::string record = to_record(whole);
  EXPECT_EQ(record, "serving rank 3 incarnation 18446744073709551615\ntcp://127.0.0.1:1\nunix:///tmp/a b\n");
  const Member read = from_record("worker 1", record);
  EXPECT_EQ(read.id(), whole.id());
  EXPECT_EQ(read.rank, 3U);
  EXPECT_EQ(read.state, MemberState::serving);
  EXPECT_EQ(read.addresses, whole.addresses);
  EXPECT_TRUE(from_record("a", to_record(member("a", MemberState::left))).addresses.empty());
  for (const char* bad :
       {"", "joined", "joined rank x incarnation 1", "gone rank 1 incarnation 1", "joined 1 1 1 1"})
    EXPECT_THROW(from_record("a", bad), Error) << bad;
}

TEST(Roster, CountsWhoHasJoinedThoughTheyAreGone) {
  const Roster all = roster({member("a", MemberState::claimed), member("b", MemberState::joined),
                             member("c", MemberState::serving), member("d", MemberState::left),
                             member("e", MemberState::lost)});
  EXPECT_EQ(all.joined(), 4U);
  ASSERT_NE(all.find("b"), nullptr);
  EXPECT_EQ(all.find("b")->id(), (AgentId{"b", 7}));
  EXPECT_EQ(all.find("x"), nullptr);
  EXPECT_TRUE(all.find("a")->here());
  EXPECT_TRUE(all.find("c")->here());
  EXPECT_FALSE(all.find("d")->here());
  EXPECT_FALSE(all.find("e")->here());
}

TEST(Roster, ServersDoNotWaitForEachOtherButTheHostForAll) {
  using Names = std::vector<std::string>;
  const Roster busy = roster({member("host", MemberState::serving), member("server", MemberState::serving),
                              member("trainer", MemberState::joined)});
  EXPECT_EQ(busy.awaited_by("server", false), Names{"trainer"});
  EXPECT_EQ(busy.awaited_by("host", true), (Names{"server", "trainer"}));
  EXPECT_EQ(busy.awaited_by("trainer", false), Names{});
  const Roster done = roster({member("host", MemberState::serving), member("server", MemberState::left),
                              member("trainer", MemberState::left)});
  EXPECT_EQ(done.awaited_by("host", true), Names{});
}

}  // namespace
}  // namespace weft::rpc

// The lists of an agent's objects and references, for its program and for others.
#include <weft/rpc/agent/stats.h>
#include <weft/rref/listing.h>
#include <weft/rref/rref.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::listing_test {
namespace {

// Reports its size, which put() increases.
struct Table : Counted, Sized {
  void put(std::int64_t rows) { size += static_cast<std::uint64_t>(rows) * 8; }
  std::uint64_t bytes() const override { return size; }
  using Service = rpc::Service<"listing.table", rpc::Method<"put", &Table::put>>;
  std::atomic<std::uint64_t> size{0};
};

struct SlowTable : Counted {
  SlowTable() { gate->wait(); }
  void touch() {}
  using Service = rpc::Service<"listing.slow_table", rpc::Method<"touch", &SlowTable::touch>>;
  static inline std::shared_ptr<test::Event> gate;
};

class ListingTest : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    SlowTable::gate = std::make_shared<test::Event>();
    start({"owner", "anna", "bert"});
    agent("owner").allow_create<Table>();
    agent("owner").allow_create<SlowTable>();
  }
  void TearDown() override {
    SlowTable::gate->set();
    RRefTest::TearDown();
  }
};

TEST_F(ListingTest, NamesTypeUsersSiteSizeAndAge) {
  const auto text = local(agent("owner"), std::string("seven"));
  const auto table = create<Table>(peer("anna", "owner"));
  const std::string line = std::to_string(__LINE__ - 1);
  got(table.call<&Table::put>(5));
  eventually("the reply to its creation has arrived too", [&] { return table.is_confirmed(); });
  got(peer("anna", "bert").call<&Keeper::keep>(RRef<Box>(table.reference())));
  for (const ReferenceListing& listing :
       {list(agent("owner")), got(list(peer("bert", "owner"))), got(list(agent("owner").peer("owner")))}) {
    EXPECT_EQ(listing.agent, "owner");
    EXPECT_EQ(listing.more, 0U);
    ASSERT_EQ(listing.objects.size(), 2U);
    EXPECT_GE(listing.objects[0].age, listing.objects[1].age) << "the oldest comes first";
    // The clock of ages is coarse: both objects may have the same age, and then any order is valid.
    const bool in_order = listing.objects[0].id == to_string(text.id());
    const ObjectListing& first = listing.objects[in_order ? 0 : 1];
    EXPECT_EQ(first.id, to_string(text.id()));
    EXPECT_EQ(first.type, "str");
    EXPECT_EQ(first.bytes, 5U);
    EXPECT_EQ(first.holds, 1U);
    EXPECT_TRUE(first.users.empty());
    const ObjectListing& second = listing.objects[in_order ? 1 : 0];
    EXPECT_EQ(second.id, to_string(table.id()));
    EXPECT_EQ(second.type, "listing.table");
    EXPECT_EQ(second.state, "live");
    EXPECT_EQ(second.bytes, 40U) << "asked now, not when it was made";
    EXPECT_EQ(second.users, (std::vector<std::string>{"anna", "bert"}));
    EXPECT_EQ(second.site, "listing_test.cc:" + line + " on anna");
    EXPECT_GE(first.age, second.age);
    EXPECT_GE(second.age, 0);
    EXPECT_LT(first.age, 3600);
  }
}

TEST_F(ListingTest, ListsTheOldestObjectsUpToTheLimit) {
  std::vector<RRef<std::int64_t>> all;
  for (std::int64_t i = 0; i < 5; ++i) all.push_back(local(agent("owner"), i));
  const auto listing = got(list(peer("anna", "owner"), 2));
  ASSERT_EQ(listing.objects.size(), 2U);
  EXPECT_EQ(listing.more, 3U);
  EXPECT_EQ(listing.stats.objects, 5U) << "all are counted";
  EXPECT_FALSE(listing.objects[0].bytes) << "nobody knows the size of that type";
}

TEST_F(ListingTest, ListsUnfinishedAndFailedObjects) {
  const auto slow = create<SlowTable>(peer("anna", "owner"));
  const auto failed = create<Box>(peer("anna", "owner"), -1);
  eventually("one is made, the other failed", [&] {
    const auto stats = rref::stats(agent("owner"));
    return stats.creating == 1 && stats.failed == 1;
  });
  std::vector<std::string> states;
  for (const auto& object : list(agent("owner")).objects) states.push_back(object.state);
  std::sort(states.begin(), states.end());
  EXPECT_EQ(states, (std::vector<std::string>{"creating", "failed"}));
  SlowTable::gate->set();
  eventually("it lives", [&] { return rref::stats(agent("owner")).objects == 1; });
}

// PyTorch's test_rref_context_debug_info, test_debug_info.
TEST_F(ListingTest, CountsFollowCreationsAndReleases) {
  {
    const auto box = create<Box>(peer("anna", "owner"), 1);
    got(box.ready());
    eventually("it is confirmed", [&] { return box.is_confirmed(); });
    got(peer("anna", "bert").call<&Keeper::keep>(box));
    const auto owner = rref::stats(agent("owner"));
    EXPECT_EQ(owner.objects, 1U);
    EXPECT_EQ(owner.forks, 2U);
    EXPECT_EQ(owner.references, 0U);
    const auto anna = rref::stats(agent("anna"));
    EXPECT_EQ(anna.objects, 0U);
    EXPECT_EQ(anna.references, 1U);
    EXPECT_EQ(anna.pending, 0U);
    EXPECT_EQ(rref::stats(agent("bert")).references, 1U);
    const auto told = got(rpc::stats(peer("anna", "owner"))).layers;  // the same, in the agent's stats
    EXPECT_EQ(told.at("rref.objects"), 1U);
    EXPECT_EQ(told.at("rref.forks"), 2U);
    EXPECT_EQ(told.at("rref.references"), 0U);
    EXPECT_EQ(rpc::stats(agent("anna")).layers.at("rref.references"), 1U);
  }
  keepers["bert"]->drop();
  expect_nothing_left();
  for (const auto* name : {"owner", "anna", "bert"}) {
    const auto stats = rref::stats(agent(name));
    EXPECT_EQ(stats.objects + stats.forks + stats.holds + stats.references + stats.children, 0U) << name;
    for (const auto& [figure, now] : rpc::stats(agent(name)).layers) EXPECT_EQ(now, 0U) << figure;
  }
}

TEST_F(ListingTest, PendingUsersAndTheirParentsAreCounted) {
  auto box = create<Box>(peer("anna", "owner"), 1);
  got(box.ready());
  eventually("it is confirmed", [&] { return box.is_confirmed(); });
  peer("bert", "owner");
  HeldLoop owner(agent("owner"));
  auto kept = peer("anna", "bert").call<&Keeper::keep>(box);
  eventually("bert's fork waits for the owner", [&] { return rref::stats(agent("bert")).pending == 1; });
  EXPECT_EQ(rref::stats(agent("anna")).children, 1U);
  owner.release();
  got(std::move(kept));
  eventually("both know", [&] {
    return rref::stats(agent("bert")).pending == 0 && rref::stats(agent("anna")).children == 0;
  });
}

TEST_F(ListingTest, AnAgentWithoutTheLayerFails) {
  rpc::Agent& plain = cluster->add("plain", {});
  EXPECT_EQ(kind_of([&] { list(plain); }), ErrorKind::failed_precondition);
  EXPECT_EQ(kind_of([&] { got(list(peer("anna", "plain"))); }), ErrorKind::not_found);
}

}  // namespace
}  // namespace weft::rref::listing_test

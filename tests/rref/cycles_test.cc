// Cycles of objects that hold one another: found by asking their owners.
#include <weft/rref/cycles.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::cycles_test {
namespace {

// Lists the objects that it holds.
struct Node : Counted, Holder {
  void keep(RRef<Node> other) { kept.push_back(std::move(other)); }
  void forget() { kept.clear(); }
  void held(HeldReferences& out) const override { out.add(kept); }
  using Service =
      rpc::Service<"cycles.node", rpc::Method<"keep", &Node::keep>, rpc::Method<"forget", &Node::forget>>;
  std::vector<RRef<Node>> kept;
};

class CyclesTest : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    start({"program", "anna", "bert", "cora"});
    for (const auto* name : {"anna", "bert", "cora"}) agent(name).allow_create<Node>();
    for (const auto* from : {"anna", "bert", "cora"})
      for (const auto* to : {"anna", "bert", "cora"}) peer(from, to);
  }
  RRef<Node> node(const std::string& owner) {
    auto made = create<Node>(peer("program", owner));
    got(made.ready());
    return made;
  }
  static void hold(const RRef<Node>& holder, const RRef<Node>& held) { got(holder.call<&Node::keep>(held)); }
  std::vector<Cycle> find() {
    return got(find_cycles({peer("program", "anna"), peer("program", "bert"), peer("program", "cora")}));
  }
  // Breaks all cycles.
  void free() {
    for (const auto* name : {"anna", "bert", "cora"})
      for (const auto& [id, object] : context(name)->stored_objects()) object->as<Node>()->kept.clear();
  }
};

TEST_F(CyclesTest, OfObjectsOnTwoOwners) {
  {
    const auto a = node("anna"), b = node("bert"), outside = node("cora");
    hold(a, b);
    hold(b, a);
    hold(outside, a);
    const auto cycles = find();
    ASSERT_EQ(cycles.size(), 1U);
    ASSERT_EQ(cycles[0].members.size(), 2U);
    EXPECT_EQ(cycles[0].members[0].owner, "anna");
    EXPECT_EQ(cycles[0].members[0].id, a.id());
    EXPECT_EQ(cycles[0].members[0].type, "cycles.node");
    EXPECT_NE(cycles[0].members[0].site.find("cycles_test.cc:"), std::string::npos);
    EXPECT_EQ(cycles[0].members[1].owner, "bert");
    EXPECT_EQ(cycles[0].members[1].id, b.id());
    EXPECT_FALSE(cycles[0].garbage) << "the program still has both";
  }
  eventually("it is garbage once the program and the third object have let go", [&] {
    const auto cycles = find();
    return cycles.size() == 1 && cycles[0].garbage;
  });
  EXPECT_EQ(Counted::alive, 2);
  EXPECT_NE(to_string(find().at(0)).find("a cycle without references from outside: cycles.node "),
            std::string::npos);
  free();
  expect_nothing_left();
}

TEST_F(CyclesTest, OfThreeOwnersAndAnObjectThatHoldsItself) {
  {
    const auto a = node("anna"), b = node("bert"), c = node("cora"), self = node("bert"), leaf = node("bert");
    hold(a, b);
    hold(b, c);
    hold(c, a);
    hold(c, leaf);
    hold(self, self);
    const auto cycles = find();
    ASSERT_EQ(cycles.size(), 2U);
    EXPECT_EQ(cycles[0].members.size(), 3U);
    ASSERT_EQ(cycles[1].members.size(), 1U);
    EXPECT_EQ(cycles[1].members[0].id, self.id());
  }
  eventually("both are garbage", [&] {
    const auto cycles = find();
    return cycles.size() == 2 && cycles[0].garbage && cycles[1].garbage;
  });
  EXPECT_EQ(Counted::alive, 5) << "the leaf is kept by them";
  free();
  expect_nothing_left();
}

TEST_F(CyclesTest, ACycleWithAnExternalReferenceIsNotGarbage) {
  std::optional<RRef<Node>> mine;
  {
    const auto a = node("anna"), b = node("bert");
    hold(a, b);
    hold(b, a);
    mine = a;
  }
  eventually("only one handle of the program is left",
             [&] { return context("program")->live_forks().size() == 1; });
  const auto cycles = find();
  ASSERT_EQ(cycles.size(), 1U);
  EXPECT_FALSE(cycles[0].garbage);
  mine.reset();
  eventually("now it is", [&] { return find().at(0).garbage; });
  free();
  expect_nothing_left();
}

TEST_F(CyclesTest, ANamedObjectIsHeldByItsName) {
  {
    const auto a = create<Node>(peer("program", "anna"), Named{"it"});
    const auto again = create<Node>(peer("program", "anna"), Named{"it"});
    got(a.ready()), got(again.ready());
    const auto b = node("bert");
    hold(a, b);
    hold(b, again);  // the same object by another id
    const auto cycles = find();
    ASSERT_EQ(cycles.size(), 1U);
    EXPECT_EQ(cycles[0].members.size(), 2U);
  }
  eventually("the program holds nothing", [&] { return context("program")->live_forks().empty(); });
  EXPECT_FALSE(find().at(0).garbage);
  free();
}

// --- cycles_of() on given replies, without agents ---

HoldingObject object(std::uint64_t id, std::vector<std::uint64_t> held) {
  HoldingObject made;
  made.ids = {RRefId{1, id}};
  made.type = "t";
  for (const std::uint64_t other : held) {
    made.held.push_back({RRefId{1, other}, ForkId{id, other}, false});
  }
  return made;
}

TEST(CyclesOf, EachComponentIsReportedOnce) {
  Holdings agent{"a", {}};
  // 1 → 2 → 3 → 1 with a chord 2 → 1; 4 → 5 → 4; 3 → 4; 6 holds an object that no reply lists.
  for (auto& made : {object(1, {2}), object(2, {3, 1}), object(3, {1, 4}), object(4, {5}), object(5, {4}),
                     object(6, {99})})
    agent.objects.push_back(made);
  const auto cycles = cycles_of({agent});
  ASSERT_EQ(cycles.size(), 2U);
  EXPECT_EQ(cycles[0].members.size(), 3U);
  EXPECT_EQ(cycles[1].members.size(), 2U);
  EXPECT_EQ(cycles[1].members[0].id, (RRefId{1, 4}));
}

TEST(CyclesOf, AnExternalForkOrHoldKeepsACycleAlive) {
  Holdings agent{"a", {object(1, {2}), object(2, {1})}};
  agent.objects[0].forks = {ForkId{2, 1}};
  agent.objects[1].forks = {ForkId{1, 2}};
  EXPECT_TRUE(cycles_of({agent}).at(0).garbage);
  auto more = agent;
  more.objects[1].forks.push_back(ForkId{7, 2});
  EXPECT_FALSE(cycles_of({more}).at(0).garbage);
  more = agent;
  more.objects[0].holds = 1;
  EXPECT_FALSE(cycles_of({more}).at(0).garbage);
  more = agent;
  more.objects[0].held[0].shared = true;
  EXPECT_FALSE(cycles_of({more}).at(0).garbage);
}

TEST(CyclesOf, ALongChainIsNoCycleUntilItIsClosed) {
  Holdings agent{"a", {}};
  for (std::uint64_t i = 0; i < 20000; ++i) agent.objects.push_back(object(i, {i + 1}));
  EXPECT_TRUE(cycles_of({agent}).empty());
  agent.objects.push_back(object(20000, {0}));
  EXPECT_EQ(cycles_of({agent}).at(0).members.size(), 20001U);
}

}  // namespace
}  // namespace weft::rref::cycles_test

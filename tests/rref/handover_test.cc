// Hand-overs between agents: an object lives exactly as long as any agent holds a reference, independent of
// the path of the hand-overs.
#include <weft/rpc/core/when_all.h>
#include <weft/rref/rref.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::handover_test {
namespace {

class HandoverOf : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    start({"owner", "anna", "bert", "cora"});
  }
  // A box on "owner", created by another agent, or kept by the owner itself.
  RRef<Box> box_of(const std::string& who) {
    if (who == "owner") return local(agent("owner"), std::make_shared<Box>(1));
    auto box = create<Box>(peer(who, "owner"), 1);
    got(box.ready());
    eventually("its creator has heard so", [&] { return box.is_confirmed(); });
    return box;
  }
  // `from` gives its handle away: only `to` holds the box afterwards.
  void give(const std::string& from, const std::string& to, RRef<Box> box) {
    got(peer(from, to).call<&Keeper::keep>(std::move(box)));
  }
  // Calls the holder, so that the box is certainly usable there.
  void expect_alive_at(const std::string& who) {
    eventually("it alone has been made", [] { return Counted::alive == 1; });
    const auto box = keepers[who]->give();
    EXPECT_EQ(got(box.call<&Box::get>()), 1) << who;
    keepers[who]->keep(box);
  }
  void expect_gone() {
    expect_nothing_left();
    EXPECT_EQ(Counted::made, 1);
  }
};

struct Path {
  const char *name, *from, *to;
};
class HandoverPath : public HandoverOf, public testing::WithParamInterface<Path> {
 protected:
  const std::string from = GetParam().from, to = GetParam().to;
};
INSTANTIATE_TEST_SUITE_P(, HandoverPath,
                         testing::Values(Path{"OwnerToUser", "owner", "anna"},
                                         Path{"UserToUserThatHasNeverCalledTheOwner", "anna", "bert"},
                                         Path{"UserToOwner", "anna", "owner"},
                                         Path{"OwnerToItself", "owner", "owner"},
                                         Path{"UserToItself", "anna", "anna"}),
                         [](const auto& info) { return info.param.name; });

TEST_P(HandoverPath, AsAnArgument) {
  give(from, to, box_of(from));
  EXPECT_EQ(keepers[to]->boxes.front().is_owner(), to == "owner");
  expect_alive_at(to);
  keepers[to]->drop();
  expect_gone();
}

TEST_P(HandoverPath, AsAResult) {
  keepers[from]->keep(box_of(from));
  auto box = got(peer(to, from).call<&Keeper::give>());
  EXPECT_EQ(box.is_owner(), to == "owner");
  EXPECT_EQ(got(box.call<&Box::get>()), 1);
  EXPECT_EQ(Counted::alive, 1);
  box = {};
  expect_gone();
}

TEST_F(HandoverOf, AlongAChainAndBackToTheOwner) {
  give("anna", "bert", box_of("anna"));
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"bert", "cora"}, {"cora", "anna"}, {"anna", "owner"}, {"owner", "cora"}, {"cora", "owner"}}) {
    got(peer("anna", from).call<&Keeper::hand_on>(agent(to).addresses().front()));
    EXPECT_TRUE(keepers[from]->boxes.empty());
    expect_alive_at(to);
  }
  keepers["owner"]->drop();
  expect_gone();
}

TEST_F(HandoverOf, ManyHandlesAndOneObject) {
  const auto box = box_of("anna");
  for (const auto* to : {"bert", "cora", "owner", "bert", "anna"}) give("anna", to, box);
  for (const auto* to : {"bert", "owner", "anna"}) keepers[to]->drop();
  eventually("but anna's and cora's no fork is left", [&] {
    const auto objects = context("owner")->live_objects();
    return objects.size() == 1 && objects[0].holds == 0 && objects[0].forks.size() == 2;
  });
  expect_alive_at("cora");
  keepers["cora"]->drop();
  eventually("anna's alone", [&] { return context("owner")->live_objects().at(0).forks.size() == 1; });
  EXPECT_EQ(got(box.call<&Box::get>()), 1);
}

TEST_F(HandoverOf, CopiesShareOneFork) {
  auto box = box_of("anna");
  auto copy = box;
  EXPECT_EQ(context("anna")->live_forks().size(), 1U);
  box = {};
  EXPECT_EQ(got(copy.call<&Box::get>()), 1);
  copy = {};
  expect_gone();
}

// --- The forks in a message end, even if the message is lost or refused ---

TEST_F(HandoverOf, ReferencesInNotifications) {
  auto box = box_of("anna");
  HeldLoop owner(agent("owner"));  // the owner hears of bert's fork only after anna has released hers
  peer("anna", "bert").notify<&Keeper::keep>(box);
  peer("anna", "anna").notify<&Keeper::keep>(box);
  box = {};
  eventually("anna has it", [&] { return keepers["anna"]->kept == 1; });
  keepers["anna"]->drop();
  owner.release();
  eventually("bert has it", [&] { return keepers["bert"]->kept == 1; });
  expect_alive_at("bert");
  keepers["bert"]->drop();
  expect_gone();
}

TEST_F(HandoverOf, ANotificationReleasesItsResult) {
  keepers["owner"]->keep(box_of("owner"));
  keepers["bert"]->keep(box_of("bert"));
  peer("anna", "owner").notify<&Keeper::give>();
  peer("anna", "bert").notify<&Keeper::give>();
  expect_nothing_left();
}

struct Unwritable {};

}  // namespace
}  // namespace weft::rref::handover_test

namespace weft::rpc {
template <>
struct Codec<rref::handover_test::Unwritable> {
  static void describe(TypeText& text) { text << "unwritable"; }
  static void encode(ValueWriter, const rref::handover_test::Unwritable&) {
    throw Error(ErrorKind::unsupported, "cannot be written");
  }
  static rref::handover_test::Unwritable decode(ValueReader) { return {}; }
};
}  // namespace weft::rpc

namespace weft::rref::handover_test {
namespace {

void take(RRef<Box>, Unwritable) {}
using Take = rpc::Function<"take", &take>;
void take_text(RRef<Box>, std::string) {}
using TakeText = rpc::Function<"take_text", &take_text>;

struct Maker {
  std::pair<RRef<Box>, Unwritable> make() { return {std::move(box), Unwritable{}}; }
  std::pair<RRef<Box>, std::string> make_large() { return {std::move(box), std::string(100 << 10, 'x')}; }
  RRef<Box> give_late() {
    called.set();
    gate.wait();
    return std::move(box);
  }
  using Service =
      rpc::Service<"maker", rpc::Method<"make", &Maker::make>, rpc::Method<"make_large", &Maker::make_large>,
                   rpc::Method<"give_late", &Maker::give_late>>;
  RRef<Box> box;
  test::Event called, gate;
};

TEST_F(HandoverOf, ACallThatCannotBeWritten) {
  agent("bert").serve<Take>();
  {
    const auto box = box_of("anna");
    EXPECT_EQ(kind_of([&] { got(peer("anna", "bert").call<Take>(box, Unwritable{})); }),
              ErrorKind::unsupported);
    EXPECT_EQ(kind_of([&] { remote<Take>(peer("anna", "bert"), box, Unwritable{}); }),
              ErrorKind::unsupported);
    EXPECT_EQ(kind_of([&] { remote<Take>(peer("bert", "bert"), RRef<Box>{}, Unwritable{}); }),
              ErrorKind::unsupported);
    EXPECT_EQ(got(box.call<&Box::get>()), 1);
  }
  expect_gone();
}

TEST_F(HandoverOf, AReplyThatCannotBeWritten) {
  for (const auto* who : {"owner", "bert"}) {
    const auto maker = std::make_shared<Maker>();
    maker->box = box_of(who);
    agent(who).serve(maker);
    EXPECT_EQ(kind_of([&] { got(peer("anna", who).call<&Maker::make>()); }), ErrorKind::unsupported);
  }
  expect_nothing_left();
}

class TightHandover : public HandoverOf {
 protected:
  void SetUp() override {
    adjust = [](rpc::AgentOptions& options) { options.limits.header = 64 << 10; };
    HandoverOf::SetUp();
  }
};

TEST_F(TightHandover, AMessageThatIsTooLarge) {
  agent("anna").serve<TakeText>();
  for (const auto* who : {"owner", "bert"}) {
    const auto maker = std::make_shared<Maker>();
    maker->box = box_of(who);
    agent(who).serve(maker);
    EXPECT_EQ(
        kind_of([&] { got(peer(who, "anna").call<TakeText>(maker->box, std::string(100 << 10, 'x'))); }),
        ErrorKind::resource_exhausted);
    EXPECT_EQ(kind_of([&] { got(peer("anna", who).call<&Maker::make_large>()); }),
              ErrorKind::resource_exhausted);
  }
  expect_nothing_left();
}

TEST_F(HandoverOf, AReplyWithoutAWaiter) {
  for (const auto* who : {"owner", "bert"}) {
    const auto maker = std::make_shared<Maker>();
    maker->box = box_of(who);
    agent(who).serve(maker);
    auto late = peer("anna", who).call<&Maker::give_late>();
    maker->called.wait();
    late.cancel();
    EXPECT_EQ(kind_of([&] { got(std::move(late)); }), ErrorKind::cancelled);
    maker->gate.set();
  }
  expect_nothing_left();
}

TEST_F(HandoverOf, ACallThatIsRefused) {
  {
    const auto box = box_of("anna");
    rpc::OutgoingCall call = peer("anna", "bert").calls().make("nobody.serves_this", 1);
    call.begin();
    rpc::Codec<RRef<Box>>::encode(call.message().argument(0), box);
    call.end();
    auto refused = peer("anna", "bert").calls().start_typed<void>(std::move(call), [](auto&& reply) {
      return rpc::decode_reply<void>(std::move(reply), "nobody.serves_this");
    });
    EXPECT_EQ(kind_of([&] { got(std::move(refused)); }), ErrorKind::not_found);
  }
  expect_gone();
}

TEST_F(HandoverOf, ToALostAgentFails) {
  const auto bert = peer("anna", "bert");
  const auto from_owner = peer("owner", "bert");
  {
    const auto box = box_of("anna");
    const auto own = box_of("owner");
    end("bert");
    eventually("anna knows",
               [&] { return kind_of([&] { got(bert.call<&Keeper::keep>(box)); }).has_value(); });
    eventually("the owner knows",
               [&] { return kind_of([&] { got(from_owner.call<&Keeper::keep>(own)); }).has_value(); });
    EXPECT_EQ(got(box.call<&Box::get>()), 1);
  }
  expect_nothing_left();
}

// --- Requests and handlers ---

TEST_F(HandoverOf, ARequestHoldsItsObject) {
  rpc::Future<std::int64_t> value, sum;
  {
    auto box = box_of("anna");
    HeldLoop owner(agent("owner"));
    value = box.call<&Box::get>();
    sum = box.call<&Box::add>(4);
    box = {};
  }
  EXPECT_EQ(got(std::move(value)), 1);
  EXPECT_EQ(got(std::move(sum)), 5);
  expect_gone();
}

TEST_F(HandoverOf, AHandlerRunsOnceItsReferencesAreConfirmed) {
  const auto bert = peer("anna", "bert");
  const auto box = box_of("anna");
  peer("bert", "owner");
  HeldLoop owner(agent("owner"));
  auto looked = bert.call<&Keeper::look>(box);
  EXPECT_EQ(got(bert.call<&Keeper::ping>()), 0) << "a later call without references overtakes it";
  EXPECT_FALSE(looked.ready());
  owner.release();
  EXPECT_EQ(got(std::move(looked)), 1);
  EXPECT_EQ(got(bert.call<&Keeper::ping>()), 1);
}

TEST_F(HandoverOf, AnObjectKeepsTheReferencesThatItHolds) {
  {
    auto outer = create<Box>(peer("anna", "owner"), 1);
    got(outer.call<&Box::keep>(create<Box>(peer("anna", "bert"), 2)));
    eventually("both have been made", [] { return Counted::alive == 2; });
    auto inner = got(outer.call<&Box::give>());
    EXPECT_EQ(inner.owner(), agent("bert").id());
    got(inner.call<&Box::keep>(create<Box>(peer("anna", "cora"), 3)));
    inner = {};
    EXPECT_EQ(got(got(got(outer.call<&Box::give>()).call<&Box::give>()).call<&Box::get>()), 3);
    got(outer.call<&Box::keep>(RRef<Box>{}));  // an empty one, too, may travel
    eventually("the inner ones went", [] { return Counted::alive == 1; });
    EXPECT_FALSE(got(outer.call<&Box::give>()).valid());
  }
  expect_nothing_left();
}

TEST_F(HandoverOf, AnObjectThatHoldsItselfIsFreedWhenItForgetsTheReference) {
  auto box = box_of("anna");
  got(box.call<&Box::keep>(box));
  got(peer("anna", "bert").call<&Keeper::keep>(box));
  keepers["bert"]->drop();
  const auto forgetting = box.call<&Box::forget>();
  box = {};
  expect_gone();
}

}  // namespace
}  // namespace weft::rref::handover_test

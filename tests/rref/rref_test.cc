// The operations of an RRef: create, call, remote, notify, to_here, local, ready. Also the errors of invalid
// requests.
#include <weft/rref/rref.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::rref_test {
namespace {

std::int64_t twice(std::int64_t x) { return 2 * x; }
using Twice = rpc::Function<"twice", &twice>;

struct Other : Counted {
  std::int64_t get() const { return -1; }
  using Service = rpc::Service<"other", rpc::Method<"get", &Other::get>>;
};

// Has the service of its base Box, which is not its first base.
struct Padding {
  virtual ~Padding() = default;
  std::int64_t padding = 17;
};
struct DerivedBox : Padding, Box {
  using Box::Box;
};

// The constructor waits until the test releases it.
struct SlowBox : Counted {
  explicit SlowBox(std::int64_t v) : value(v) {
    gate->wait();
    if (v < 0) throw std::invalid_argument("no such width");
  }
  std::int64_t get() const { return value; }
  using Service = rpc::Service<"slow_box", rpc::Constructor<std::int64_t>, rpc::Method<"get", &SlowBox::get>>;
  std::int64_t value;
  static inline std::shared_ptr<test::Event> gate;
};

class RRefUse : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    start({"owner", "user"});
    SlowBox::gate = std::make_shared<test::Event>();
    to_owner.emplace(peer("user", "owner"));
  }
  void TearDown() override {
    SlowBox::gate->set();
    to_owner.reset();
    RRefTest::TearDown();
  }
  std::optional<rpc::Peer> to_owner;
};

TEST_F(RRefUse, CreatesAndCalls) {
  {
    const auto box = create<Box>(*to_owner, 5);
    EXPECT_EQ(box.owner(), agent("owner").id());
    EXPECT_FALSE(box.is_owner());
    EXPECT_EQ(got(box.call<&Box::get>()), 5);
    got(box.call<&Box::set>(7));
    EXPECT_EQ(got(box.call<&Box::add>(3)), 10);
    got(box.ready());
    eventually("the reply to its creation has arrived too", [&] { return box.is_confirmed(); });
    EXPECT_EQ(Counted::alive, 1);
  }
  expect_nothing_left();
  EXPECT_EQ(Counted::made, 1);
}

TEST_F(RRefUse, KeepsResultsWhereTheyAre) {
  agent("owner").serve<Twice>();
  const auto box = create<Box>(*to_owner, 5);
  const RRef<std::int64_t> five = box.remote<&Box::get>();
  const RRef<std::int64_t> ten = remote<Twice>(*to_owner, five);  // a value that never leaves the owner
  const RRef<std::int64_t> pings = remote<&Keeper::ping>(*to_owner);
  EXPECT_EQ(got(ten.to_here()), 10);
  EXPECT_EQ(got(ten.to_here()), 10) << "a value can be fetched again";
  EXPECT_EQ(got(pings.to_here()), 0);
  EXPECT_EQ(got(box.call<&Box::add>(ten)), 15) << "an RRef where a value is declared";
  got(box.remote<&Box::set>(1).ready());  // of a method without a result
  EXPECT_EQ(got(box.call<&Box::get>()), 1);
}

TEST_F(RRefUse, Notifies) {
  const auto box = create<Box>(*to_owner, 5);
  box.notify<&Box::set>(6);
  EXPECT_EQ(got(box.call<&Box::get>()), 6) << "a notification keeps its place among the calls";
}

TEST_F(RRefUse, HandlersErrorsArriveWithTheirText) {
  const auto box = create<Box>(*to_owner, 5);
  expect_error([&] { got(box.call<&Box::fail>("out of order")); }, ErrorKind::handler_failed,
               "owner: box.fail: std::runtime_error: out of order");
}

TEST_F(RRefUse, LocalGivesTheObjectItself) {
  const auto mine = std::make_shared<Box>(8);
  auto box = local(agent("owner"), mine);
  EXPECT_TRUE(box.is_owner());
  EXPECT_TRUE(box.is_confirmed());
  EXPECT_EQ(got(box.local()), mine);
  EXPECT_EQ(got(box.call<&Box::get>()), 8) << "calls work on the owner too";
  EXPECT_EQ(got(local(agent("owner"), std::string("text")).to_here()), "text");

  got(peer("owner", "user").call<&Keeper::keep>(box));
  const auto there = keepers["user"]->give();
  got(there.call<&Box::set>(9));
  EXPECT_EQ(mine->value, 9);
  EXPECT_EQ(kind_of([&] { got(there.local()); }), ErrorKind::failed_precondition);
}

TEST_F(RRefUse, LocalObjectsServeTheirMethods) {
  const auto other = local(agent("owner"), std::make_shared<Other>());  // not creatable by peers
  EXPECT_EQ(got(other.call<&Other::get>()), -1);
  EXPECT_EQ(kind_of([&] { got(create<Other>(*to_owner).ready()); }), ErrorKind::not_found);
}

TEST_F(RRefUse, AnAgentIsAPeerOfItself) {
  const auto box = create<Box>(agent("owner").peer("owner"), 3);
  EXPECT_TRUE(box.is_owner());
  EXPECT_EQ(got(box.call<&Box::add>(1)), 4);
  EXPECT_EQ(got(box.local())->value, 4);
  EXPECT_EQ(got(box.remote<&Box::get>().to_here()), 4);
  got(agent("owner").peer("owner").call<&Keeper::keep>(box));
  EXPECT_EQ(got(keepers["owner"]->give().local()), got(box.local()));
  EXPECT_EQ(kind_of([&] { got(create<Box>(agent("owner").peer("owner"), -3).ready()); }),
            ErrorKind::handler_failed);
}

TEST_F(RRefUse, DerivedObjectsAreCalledAsTheirBase) {
  const auto derived = std::make_shared<DerivedBox>(4);
  const auto box = local(agent("owner"), std::static_pointer_cast<Box>(derived));
  EXPECT_EQ(got(box.call<&Box::get>()), 4);
  const auto as_derived = local(agent("owner"), derived);
  EXPECT_EQ(got(as_derived.call<&Box::add>(1)), 5) << "the method belongs to the base, at another address";
  EXPECT_EQ(got(RRef<Box>(as_derived.reference()).local()).get(), derived.get());
}

TEST_F(RRefUse, ConfusedTypesAreErrors) {
  agent("owner").allow_create<Other>();
  const auto box = create<Box>(*to_owner, 5);
  expect_error([&] { got(RRef<Other>(box.reference()).call<&Other::get>()); }, ErrorKind::type_mismatch,
               "'other.get' called on an object of type box");
  EXPECT_EQ(kind_of([&] { got(RRef<std::int64_t>(box.reference()).to_here()); }), ErrorKind::unsupported);
  EXPECT_EQ(kind_of([&] { got(RRef<std::string>(box.remote<&Box::get>().reference()).to_here()); }),
            ErrorKind::type_mismatch);

  const auto mine = local(agent("owner"), Other{});
  EXPECT_EQ(kind_of([&] { got(RRef<Box>(mine.reference()).local()); }), ErrorKind::type_mismatch);
  EXPECT_EQ(kind_of([&] { got(RRef<std::int64_t>(mine.reference()).local()); }), ErrorKind::type_mismatch);
  EXPECT_EQ(got(box.call<&Box::get>()), 5) << "nothing of this harmed the object";
}

TEST_F(RRefUse, CreationOnAPeerOfUnknownIncarnationIsRefusedAndDoesNotBlock) {
  add("late");
  const rpc::Peer late = agent("user").connect(agent("late").addresses().front());
  const rpc::Peer unknown = agent("user").peer("unknown");
  for (const auto& make : {std::function<void()>([&] { create<Box>(unknown, 1); }),
                           std::function<void()>([&] { remote<&Keeper::give>(unknown); })})
    expect_error(make, ErrorKind::failed_precondition, "await peer.ready() first");
  got(late.ready());
  EXPECT_EQ(got(create<Box>(late, 7).call<&Box::get>()), 7);
}

TEST_F(RRefUse, MayBeUsedBeforeTheObjectIsCreated) {
  agent("owner").allow_create<SlowBox>();
  const auto slow = create<SlowBox>(*to_owner, 5);
  auto value = slow.call<&SlowBox::get>();
  auto ready = slow.ready();
  auto sum = to_owner->call<&Keeper::sum>(slow.remote<&SlowBox::get>(), 1);
  EXPECT_FALSE(value.ready());
  SlowBox::gate->set();
  EXPECT_EQ(got(std::move(value)), 5);
  EXPECT_EQ(got(std::move(sum)), 6);
  got(std::move(ready));
}

TEST_F(RRefUse, MayBeDroppedBeforeTheObjectIsCreated) {
  agent("owner").allow_create<SlowBox>();
  auto value = create<SlowBox>(*to_owner, 5).call<&SlowBox::get>();  // the request alone holds it
  create<SlowBox>(*to_owner, 6);
  create<SlowBox>(agent("owner").peer("owner"), 7);
  SlowBox::gate->set();
  EXPECT_EQ(got(std::move(value)), 5);
  eventually("all three have been created", [] { return Counted::made == 3; });
  expect_nothing_left();
}

TEST_F(RRefUse, AFailedCreationReachesEveryUser) {
  agent("owner").allow_create<SlowBox>();
  add("third");
  const auto slow = create<SlowBox>(*to_owner, -1);
  auto call = slow.call<&SlowBox::get>();
  auto result = slow.remote<&SlowBox::get>();
  // Handed over before the failure of its creation is known, as an RRef<Box>: Keeper never uses it.
  auto early = peer("user", "third").call<&Keeper::keep>(RRef<Box>(slow.reference()));
  SlowBox::gate->set();

  const test::ErrorText why = "no such width";
  expect_error([&] { got(std::move(call)); }, ErrorKind::handler_failed, why);
  expect_error([&] { got(slow.ready()); }, ErrorKind::handler_failed, why);
  expect_error([&] { got(result.to_here()); }, ErrorKind::failed_precondition, why);
  // The third agent's fork may be confirmed before or after the failure: either its call or its use of the
  // box fails.
  const auto use_early = [&] {
    got(std::move(early));
    got(keepers["third"]->give().call<&Box::get>());
  };
  expect_error(use_early, ErrorKind::failed_precondition, why);
  eventually("the user's fork knows", [&] { return !slow.is_confirmed(); });
  expect_error([&] { got(peer("user", "third").call<&Keeper::keep>(RRef<Box>(slow.reference()))); },
               ErrorKind::handler_failed, why);
  EXPECT_THROW(slow.remote<&SlowBox::get>(), rpc::Error);
}

TEST_F(RRefUse, APeerCreatesOnlyTypesThatItAllows) {
  const auto refused = create<Other>(*to_owner);
  expect_error([&] { got(refused.ready()); }, ErrorKind::not_found,
               test::whole("owner: other.new: no such method on this agent: it must permit peers to create a "
                           "'other', by agent.allow_create<T>()"));
  EXPECT_EQ(kind_of([&] { got(refused.call<&Other::get>()); }), ErrorKind::not_found);
  EXPECT_EQ(kind_of([&] { got(to_owner->call<&Box::get>()); }), ErrorKind::not_found)
      << "a method of objects alone, called without one";
}

TEST_F(RRefUse, AWaitingCallFailsAtItsDeadline) {
  agent("owner").allow_create<SlowBox>();
  const auto slow = create<SlowBox>(*to_owner, 5);
  const auto hurried = slow.with(rpc::CallOptions{.timeout = std::chrono::milliseconds{20}});
  EXPECT_EQ(kind_of([&] { got(hurried.call<&SlowBox::get>()); }), ErrorKind::deadline_exceeded);
  SlowBox::gate->set();
  EXPECT_EQ(got(slow.call<&SlowBox::get>()), 5);
}

TEST_F(RRefUse, AgentsWithoutTheLayerFailWithTheRemedy) {
  rpc::Agent& plain = cluster->add("plain", {});
  plain.serve(std::make_shared<Keeper>(plain));
  expect_error([&] { create<Box>(peer("plain", "owner"), 1); }, ErrorKind::failed_precondition,
               "rref::layers()");
  expect_error([&] { local(plain, 1); }, ErrorKind::failed_precondition, "rref::layers()");
  const auto box = create<Box>(*to_owner, 5);
  expect_error([&] { got(peer("user", "plain").call<&Keeper::keep>(box)); }, ErrorKind::unsupported,
               "needs a layer that this agent was created without: rref");
  expect_error([&] { got(create<Box>(peer("user", "plain"), 1).ready()); }, ErrorKind::unsupported,
               "without: rref");
  got(to_owner->call<&Keeper::keep>(box));
  expect_error([&] { got(peer("plain", "owner").call<&Keeper::give>()); }, ErrorKind::failed_precondition,
               "created without rref::layers()");
  EXPECT_EQ(got(box.call<&Box::get>()), 5);
}

TEST_F(RRefUse, AnRRefInACallOfAnotherAgentIsRefused) {
  const auto box = create<Box>(*to_owner, 5);
  expect_error([&] { got(peer("owner", "user").call<&Keeper::keep>(box)); }, ErrorKind::failed_precondition,
               "an RRef of agent user");
}

TEST_F(RRefUse, AnRRefIsHandedOverOnlyToAKnownIncarnation) {
  add("third");
  const auto box = create<Box>(*to_owner, 5);
  const rpc::Peer stranger = agent("user").connect(agent("third").addresses().front());
  EXPECT_EQ(kind_of([&] { got(stranger.call<&Keeper::keep>(box)); }), ErrorKind::failed_precondition);
  got(stranger.ready());
  got(stranger.call<&Keeper::keep>(box));
  EXPECT_EQ(keepers["third"]->kept, 1);
}

}  // namespace
}  // namespace weft::rref::rref_test

// The end of owners, of users, of agents that hand references over, and of the agent that an RRef belongs to.
// In process and over TCP.
#include <weft/rpc/endpoint/link.h>
#include <weft/rref/rref.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::loss_test {
namespace {

// A constructor and a handler that block until the test sets `gate`.
std::shared_ptr<test::Event> gate, entered;
struct Slow : Counted {
  explicit Slow(std::int64_t wait) {
    if (wait != 0) block();
  }
  void block() {
    entered->set();
    gate->wait();
  }
  using Service = rpc::Service<"slow", rpc::Constructor<std::int64_t>, rpc::Method<"block", &Slow::block>>;
};

class LossTest : public RRefTest, public testing::WithParamInterface<bool> {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    gate = std::make_shared<test::Event>();
    entered = std::make_shared<test::Event>();
    start({"owner", "anna", "bert"}, GetParam());
    for (const auto* name : {"owner", "anna", "bert"}) agent(name).allow_create<Slow>();
  }
  void TearDown() override {
    gate->set();
    RRefTest::TearDown();
  }
  template <class F>
  static void expect_owner_lost(F&& f) {
    expect_error(f, ErrorKind::owner_lost, "owner");
  }
};
INSTANTIATE_TEST_SUITE_P(, LossTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "Tcp" : "InProcess"; });

TEST_P(LossTest, UsersOfALostOwnerGetAnError) {
  const auto slow = create<Slow>(peer("anna", "owner"), 0);
  const auto box = create<Box>(peer("anna", "owner"), 1);
  got(peer("anna", "bert").call<&Keeper::keep>(box));
  const auto berts = keepers["bert"]->give();
  got(slow.ready());
  auto running = slow.call<&Slow::block>();  // while the owner ends
  auto queued = slow.ready();
  eventually("both have arrived", [&] { return context("owner")->live_objects().at(0).holds == 2; });
  entered->wait();
  std::thread ending([&] { end("owner"); });
  expect_owner_lost([&] { got(std::move(running)); });
  expect_owner_lost([&] { got(std::move(queued)); });
  eventually("anna knows", [&] { return !box.is_confirmed(); });
  expect_owner_lost([&] { got(box.call<&Box::get>()); });
  expect_owner_lost([&] { got(box.ready()); });
  expect_owner_lost([&] { box.remote<&Box::get>(); });
  expect_owner_lost([&] { got(peer("anna", "bert").call<&Keeper::keep>(box)); });
  eventually("bert knows", [&] { return !berts.is_confirmed(); });
  expect_owner_lost([&] { got(berts.call<&Box::get>()); });
  gate->set();
  ending.join();
}

TEST_P(LossTest, ACallThatFailsFastDoesNotLoseItsOwner) {
  const auto slow = create<Slow>(peer("anna", "owner"), 0);
  got(slow.ready());
  auto call = slow.with({.fail_fast = true}).call<&Slow::block>();
  entered->wait();
  for (const auto& link : agent("anna").core()->links().all())
    link->close_soon(rpc::Error(ErrorKind::peer_lost, "the test closes the connection"));
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::peer_lost);
  gate->set();
  got(slow.call<&Slow::block>());
}

TEST_P(LossTest, WaitsForAnObjectOfALostOwnerFail) {
  auto slow = create<Slow>(peer("anna", "owner"), 1);
  auto ready = slow.ready();
  auto result = slow.remote<&Slow::block>();
  auto result_ready = result.ready();
  auto handed = peer("anna", "bert").call<&Keeper::look>(RRef<Box>(slow.reference()));
  EXPECT_EQ(got(std::move(handed)), 1) << "a fork is confirmed before its object lives";
  eventually("the calls have arrived", [&] { return context("owner")->live_objects().at(0).holds == 2; });
  std::thread ending([&] { end("owner"); });
  expect_owner_lost([&] { got(std::move(ready)); });
  expect_owner_lost([&] { got(std::move(result_ready)); });
  gate->set();
  ending.join();
  slow = {};
  result = {};
  for (const auto* name : {"anna", "bert"})
    eventually("nothing is left", [&] { return context(name)->live_forks().empty(); });
}

TEST_P(LossTest, AUserThatWasDeclaredDeadGetsAnError) {
  const auto box = create<Box>(peer("anna", "owner"), 1);
  got(peer("anna", "bert").call<&Keeper::keep>(box));
  const auto berts = keepers["bert"]->give();
  EXPECT_EQ(got(berts.call<&Box::get>()), 1);
  agent("owner").core()->forget(agent("anna").id(), "the test says so");
  eventually("anna knows", [&] { return !box.is_confirmed(); });
  expect_error([&] { got(box.call<&Box::get>()); }, ErrorKind::lease_lost);
  EXPECT_EQ(got(berts.call<&Box::get>()), 1) << "others go on";
  eventually("the owner has released anna's fork",
             [&] { return context("owner")->live_objects().at(0).forks.size() == 1; });
}

TEST_P(LossTest, AHandlerThatWaitsForAConfirmationFailsWithTheOwner) {
  const auto box = create<Box>(peer("anna", "owner"), 1);
  got(box.ready());
  rpc::Future<std::int64_t> looked;
  {
    HeldLoop owner(agent("owner"));
    looked = peer("anna", "bert").call<&Keeper::look>(box);
    eventually("bert has the fork", [&] { return context("bert")->live_forks().size() == 1; });
    std::thread ending([&] { end("owner"); });
    owner.release();
    ending.join();
  }
  try {
    EXPECT_EQ(got(std::move(looked)), 1);  // the owner may have confirmed the fork before it ended
  } catch (const rpc::Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::owner_lost) << error.what();
  }
}

TEST_P(LossTest, ALostUsersForksEnd) {
  for (int i = 0; i < 3; ++i) keepers["anna"]->keep(create<Box>(peer("anna", "owner"), i));
  const auto own = local(agent("owner"), std::make_shared<Box>(7));
  got(peer("owner", "anna").call<&Keeper::keep>(own));
  got(peer("anna", "bert").call<&Keeper::keep>(keepers["anna"]->boxes[1]));
  eventually("they are made", [] { return Counted::alive == 4; });
  end("anna");
  eventually("bert's and the owner's own are left", [&] {
    const auto objects = context("owner")->live_objects();
    return objects.size() == 2 && objects[0].forks.size() + objects[1].forks.size() == 1;
  });
  EXPECT_EQ(got(keepers["bert"]->boxes[0].call<&Box::get>()), 1);
  EXPECT_EQ(got(own.call<&Box::get>()), 7);
  eventually("the others are gone", [] { return Counted::alive == 2; });
}

TEST_P(LossTest, AUserLostInTheMiddleOfAHandover) {
  // anna hands a reference to bert. bert asks the owner about it only after anna is gone.
  auto box = create<Box>(peer("anna", "owner"), 1);
  got(box.ready());
  HeldLoop owner(agent("owner"));
  auto looked = peer("anna", "bert").call<&Keeper::keep>(std::move(box));
  eventually("bert has the fork", [&] { return context("bert")->live_forks().size() == 1; });
  std::thread ending([&] { end("anna"); });  // it waits until the owner knows
  EXPECT_TRUE(error_of([&] { got(std::move(looked)); }));
  owner.release();
  ending.join();
  // The owner may process anna's loss or bert's fork first. bert's box is then either usable, or bert knows
  // that it is not.
  eventually("it is decided", [&] {
    const auto forks = context("bert")->live_forks();
    return forks.empty() || forks[0].stage != protocol::Stage::pending ||
           forks[0].fault != protocol::Fault::none;
  });
  keepers["bert"]->drop();
  expect_nothing_left();
}

// Uses a reference, and hands it over, while its agent drains.
struct Drained {
  rpc::Task<std::int64_t> use(RRef<Box> box) {
    entered->set();
    gate->wait();
    for (int i = 0; i < 20; ++i) {
      co_await agent->peer("owner").call<&Keeper::keep>(box);
      co_await box.call<&Box::set>(i);
    }
    co_return co_await box.call<&Box::get>();
  }
  using Service = rpc::Service<"drained", rpc::Method<"use", &Drained::use>>;
  rpc::Agent* agent;
};

TEST_P(LossTest, ADrainingAgentKeepsItsReferences) {
  agent("anna").serve(std::make_shared<Drained>(Drained{&agent("anna")}));
  peer("anna", "owner");
  auto used = peer("bert", "anna").call<&Drained::use>(create<Box>(peer("bert", "owner"), 1));
  entered->wait();
  auto drained = agent("anna").drain(std::chrono::minutes{1});
  gate->set();
  EXPECT_EQ(got(std::move(used)), 19);
  got(std::move(drained));
  end("anna");
  keepers["owner"]->drop();
  expect_nothing_left();
}

TEST_P(LossTest, AnOwnerReportsLeakedReferencesWhenItEnds) {
  const auto box = create<Box>(peer("anna", "owner"), 1);
  const std::string line = std::to_string(__LINE__ - 1);
  const auto own = local(agent("owner"), std::string("own"));
  got(peer("anna", "bert").call<&Keeper::keep>(box));
  got(box.ready());
  end("owner");
  const auto leaks = cluster->logged("leak:");
  ASSERT_EQ(leaks.size(), 1U);
  EXPECT_EQ(leaks[0].agent, "owner");
  EXPECT_EQ(leaks[0].level, rpc::LogLevel::warning);
  EXPECT_EQ(leaks[0].message, "leak: object " + to_string(box.id()) + " of type box made at loss_test.cc:" +
                                  line + " on anna is still held by anna bert");
  const auto held = cluster->logged("was held by this agent to the end");
  ASSERT_EQ(held.size(), 1U);
  EXPECT_NE(held[0].message.find("of type str made at loss_test.cc:"), std::string::npos) << held[0].message;
}

TEST_P(LossTest, AGracefulShutdownReportsNoLeak) {
  {
    const auto box = create<Box>(peer("anna", "owner"), 1);
    got(peer("anna", "bert").call<&Keeper::keep>(box));
    got(box.call<&Box::get>());
  }
  keepers["bert"]->drop();
  expect_nothing_left();
  cluster->end_all();
  EXPECT_TRUE(cluster->logged("leak").empty());
  EXPECT_TRUE(cluster->logged("to the end").empty());
}

TEST_P(LossTest, AnRRefMayOutliveItsAgent) {
  const auto owner = peer("anna", "owner");
  const auto box = create<Box>(owner, 1);
  auto own = local(agent("anna"), std::make_shared<Box>(2));
  auto pointer = got(own.local());
  got(box.ready());
  end("anna");
  const auto is_over = [](auto&& f) { expect_error(f, ErrorKind::shut_down); };
  is_over([&] { got(box.call<&Box::get>()); });
  is_over([&] { got(box.ready()); });
  is_over([&] { box.remote<&Box::get>(); });
  is_over([&] { got(own.call<&Box::get>()); });
  is_over([&] { create<Box>(owner, 1); });
  EXPECT_THROW(got(own.local()), rpc::Error);
  box.notify<&Box::set>(1);
  own = {};
  EXPECT_EQ(pointer->value, 2) << "the object itself is alive while a pointer to it exists";
  pointer = nullptr;
  eventually("both objects are gone", [] { return Counted::alive == 0; });
}

TEST_P(LossTest, ACycleBetweenOwnersLastsUntilTheyEnd) {
  {
    const auto a = create<Box>(peer("anna", "bert"), 1);
    const auto b = create<Box>(peer("bert", "anna"), 2);
    got(peer("bert", "anna").call<&Keeper::keep>(b));
    got(a.call<&Box::keep>(keepers["anna"]->give()));
    got(peer("anna", "bert").call<&Keeper::keep>(a));
    got(b.call<&Box::keep>(keepers["bert"]->give()));
  }
  eventually("only the cycle is left", [&] {
    return context("anna")->live_forks().size() == 1 && context("bert")->live_forks().size() == 1;
  });
  EXPECT_EQ(Counted::alive, 2);
  end("bert");
  EXPECT_EQ(cluster->logged("leak:").size(), 1U);
  eventually("the other went with it", [] { return Counted::alive == 0; });
}

}  // namespace
}  // namespace weft::rref::loss_test

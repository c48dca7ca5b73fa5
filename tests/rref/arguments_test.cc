// RRefs among the arguments and results of calls: in containers and structs, and in place of the values
// behind them.
#include <weft/rpc/call/call_hook.h>
#include <weft/rref/rref.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::arguments_test {

struct Shelf {
  RRef<Box> first;
  std::vector<RRef<Box>> others;
  std::map<std::string, RRef<Box>> labelled;
  std::optional<RRef<Box>> spare;
  std::string rref;  // a field named `rref` is not special here
};
WEFT_CODEC(Shelf, first, others, labelled, spare, rref)

struct Wrapped {
  RRef<std::int64_t> rref;  // a struct with one field named `rref` is not taken for the value behind it
};
WEFT_CODEC(Wrapped, rref)

namespace {

std::int64_t sum_of_shelf(Shelf shelf) {
  std::int64_t count = shelf.first.valid() ? 1 : 0;
  for (const auto& box : shelf.others) count += box.valid() ? 10 : 0;
  for (const auto& [label, box] : shelf.labelled) count += label == "red" && box.valid() ? 100 : 0;
  return count + (shelf.spare && shelf.spare->valid() ? 1000 : 0);
}
using SumOfShelf = rpc::Function<"sum_of_shelf", &sum_of_shelf>;

Shelf turn_over(Shelf shelf) {
  std::swap(shelf.first, shelf.others.at(0));
  return shelf;
}
using TurnOver = rpc::Function<"turn_over", &turn_over>;

RRef<std::int64_t> unwrap(Wrapped wrapped) { return wrapped.rref; }
using Unwrap = rpc::Function<"unwrap", &unwrap>;

std::int64_t sum_of_list(std::vector<std::int64_t> numbers, std::string text, std::int64_t more) {
  for (const std::int64_t number : numbers) more += number;
  return more + static_cast<std::int64_t>(text.size());
}
using SumOfList = rpc::Function<"sum_of_list", &sum_of_list>;

std::vector<std::int64_t> numbers(std::int64_t n) {
  return std::vector<std::int64_t>(static_cast<std::size_t>(n), 1);
}
using Numbers = rpc::Function<"numbers", &numbers>;

std::int64_t never(std::int64_t) { throw std::runtime_error("this number cannot be"); }
using Never = rpc::Function<"never", &never>;

std::int64_t take_shelf_of_boxes(std::vector<RRef<Box>> boxes) {
  return static_cast<std::int64_t>(boxes.size());
}
using CountBoxes = rpc::Function<"count_boxes", &take_shelf_of_boxes>;

// Blocks until the test releases it.
std::shared_ptr<test::Event> gate;
std::int64_t slow(std::int64_t x) {
  gate->wait();
  return x;
}
using Slow = rpc::Function<"slow", &slow>;

rpc::Task<std::int64_t> sum_through(rpc::CallContext& call, RRef<Box> box, std::int64_t x) {
  co_return co_await box.with(call).call<&Box::add>(x);
}
using SumThrough = rpc::Function<"sum_through", &sum_through>;

// Records the calls with sections that reach an agent.
class Observer final : public rpc::CallHook {
 public:
  struct Seen {
    std::string method, from;
    bool deadline;
  };
  bool knows(std::string_view) const override { return false; }
  void incoming(std::shared_ptr<rpc::IncomingCall> call, rpc::Callback next) override {
    {
      std::lock_guard lock(mutex_);
      seen_.push_back({std::string(call->method()), call->peer().id.name, call->deadline().has_value()});
    }
    next();
  }
  std::vector<Seen> seen(const std::string& method) const {
    std::lock_guard lock(mutex_);
    auto found = seen_;
    std::erase_if(found, [&](const Seen& one) { return one.method != method; });
    return found;
  }

 private:
  mutable std::mutex mutex_;  // guards seen_
  std::vector<Seen> seen_;
};

class ArgumentsTest : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    gate = std::make_shared<test::Event>();
    cluster.emplace(Cluster::Options{with_observer(), false, {}});
    for (const auto* name : {"owner", "anna", "bert"}) {
      rpc::Agent& one = add(name);
      one.serve<SumOfShelf>();
      one.serve<TurnOver>();
      one.serve<Unwrap>();
      one.serve<SumOfList>();
      one.serve<Numbers>();
      one.serve<Never>();
      one.serve<CountBoxes>();
      one.serve<Slow>();
      one.serve<SumThrough>();
    }
  }
  void TearDown() override {
    gate->set();
    RRefTest::TearDown();
  }
  rpc::Layers with_observer() {
    rpc::Layers all = layers();
    all.push_back([this](rpc::Agent& agent) {
      auto observer = std::make_shared<Observer>();
      observers[agent.name()] = observer;
      agent.core()->hooks().add(observer);
    });
    return all;
  }
  std::map<std::string, std::shared_ptr<Observer>> observers;
};

TEST_F(ArgumentsTest, ContainersAndStructs) {
  {
    Shelf shelf;
    shelf.first = create<Box>(peer("anna", "owner"), 1);
    shelf.others = {
        create<Box>(peer("anna", "owner"), 2), {}, create<Box>(peer("anna", "bert"), 3), shelf.first};
    shelf.labelled["red"] = create<Box>(peer("anna", "owner"), 4);
    EXPECT_EQ(got(peer("anna", "bert").call<SumOfShelf>(shelf)), 131);
    shelf.spare = create<Box>(peer("anna", "anna"), 5);
    EXPECT_EQ(got(peer("anna", "bert").call<SumOfShelf>(shelf)), 1131);

    const Shelf turned = got(peer("anna", "bert").call<TurnOver>(shelf));
    EXPECT_EQ(got(turned.first.call<&Box::get>()), 2);
    EXPECT_EQ(got(turned.others.at(0).call<&Box::get>()), 1);
    EXPECT_FALSE(turned.others.at(1).valid());
    EXPECT_EQ(got(turned.others.at(2).call<&Box::get>()), 3);
    EXPECT_EQ(got(turned.labelled.at("red").call<&Box::get>()), 4);
    EXPECT_TRUE(turned.spare->is_owner()) << "it came home";
    eventually("all have been made", [] { return Counted::alive == 5; });
  }
  expect_nothing_left();
}

TEST_F(ArgumentsTest, AStructWithOneReferenceIsNotReplacedByItsValue) {
  const Wrapped wrapped{remote<&Keeper::sum>(peer("anna", "owner"), 20, 1)};
  EXPECT_EQ(got(got(peer("anna", "bert").call<Unwrap>(wrapped)).to_here()), 21);
}

TEST_F(ArgumentsTest, ObjectsOfReferencesAreValuesToo) {
  const RRef<Shelf> shelf = remote<TurnOver>(
      peer("anna", "owner"), Shelf{create<Box>(peer("anna", "bert"), 1), {RRef<Box>{}}, {}, {}, "x"});
  const Shelf here = got(shelf.to_here());
  EXPECT_EQ(here.rref, "x");
  EXPECT_EQ(got(here.others.at(0).call<&Box::get>()), 1);
  EXPECT_EQ(got(peer("anna", "bert").call<SumOfShelf>(shelf)), 10) << "and in place of it";
}

TEST_F(ArgumentsTest, TheCalleeFetchesValuesFromTheirOwner) {
  const RRef<std::vector<std::int64_t>> ones = remote<Numbers>(peer("anna", "owner"), 1000);
  const RRef<std::int64_t> five = remote<&Keeper::sum>(peer("anna", "anna"), 2, 3);
  const RRef<std::string> text = local(agent("anna"), std::string("seven"));
  EXPECT_EQ(got(peer("anna", "bert").call<SumOfList>(ones, text, five)), 1010);
  EXPECT_EQ(got(peer("anna", "owner").call<SumOfList>(ones, text, five)), 1010);
  EXPECT_EQ(got(peer("anna", "anna").call<SumOfList>(ones, text, 6)), 1011);
  std::vector<std::string> to;
  for (const auto& fetch : observers["owner"]->seen("weft.rref.fetch")) to.push_back(fetch.from);
  EXPECT_EQ(to, (std::vector<std::string>{"bert", "owner", "anna"}))
      << "directly, never by way of the caller";
}

TEST_F(ArgumentsTest, AFetchHasItsCallsDeadline) {
  const auto value = remote<&Keeper::sum>(peer("anna", "owner"), 1, 2);
  const auto bert = peer("anna", "bert");
  got(bert.call<&Keeper::sum>(value, 1));
  got(bert.with(rpc::CallOptions{.timeout = std::chrono::minutes{5}}).call<&Keeper::sum>(value, 1));
  const auto fetches = observers["owner"]->seen("weft.rref.fetch");
  ASSERT_EQ(fetches.size(), 2U);
  EXPECT_FALSE(fetches[0].deadline);
  EXPECT_TRUE(fetches[1].deadline);
}

TEST_F(ArgumentsTest, ANestedCallInheritsTheDeadline) {
  const auto box = create<Box>(peer("anna", "owner"), 1);
  const auto bert = peer("anna", "bert");
  EXPECT_EQ(got(bert.call<SumThrough>(box, 1)), 2);
  EXPECT_EQ(got(bert.with(rpc::CallOptions{.timeout = std::chrono::minutes{5}}).call<SumThrough>(box, 1)), 3);
  const auto calls = observers["owner"]->seen("box.add");
  ASSERT_EQ(calls.size(), 2U);
  EXPECT_FALSE(calls[0].deadline);
  EXPECT_TRUE(calls[1].deadline);
}

TEST_F(ArgumentsTest, ACallWaitsForUnfinishedValues) {
  const auto later = remote<Slow>(peer("anna", "owner"), 4);
  auto sum = peer("anna", "bert").call<&Keeper::sum>(later, 1);
  auto nested = remote<&Keeper::sum>(peer("anna", "bert"),
                                     remote<&Keeper::sum>(peer("anna", "owner"), later, 2), later);
  EXPECT_EQ(got(peer("anna", "bert").call<&Keeper::sum>(1, 1)), 2) << "others go on meanwhile";
  EXPECT_FALSE(sum.ready());
  gate->set();
  EXPECT_EQ(got(std::move(sum)), 5);
  EXPECT_EQ(got(nested.to_here()), 10);
}

TEST_F(ArgumentsTest, AValueThatFailedFailsTheCall) {
  const auto broken = remote<Never>(peer("anna", "owner"), 1);
  for (const auto* callee : {"bert", "owner", "anna"}) {
    const auto message = message_of([&] { got(peer("anna", callee).call<&Keeper::sum>(broken, 1)); });
    EXPECT_NE(message.find("this number cannot be"), std::string::npos) << callee << ": " << message;
  }
  const auto box = create<Box>(peer("anna", "owner"), 1);
  const auto unfit = RRef<std::int64_t>(box.reference());
  EXPECT_EQ(kind_of([&] { got(peer("anna", "bert").call<&Keeper::sum>(unfit, 1)); }), ErrorKind::unsupported);
  const auto text = remote<Numbers>(peer("anna", "owner"), 1);
  EXPECT_EQ(
      kind_of([&] { got(peer("anna", "bert").call<&Keeper::sum>(RRef<std::int64_t>(text.reference()), 1)); }),
      ErrorKind::type_mismatch);
}

TEST_F(ArgumentsTest, AFetchFromALostOwnerFailsWithOwnerLost) {
  const auto value = remote<Slow>(peer("anna", "owner"), 4);
  auto sum = peer("anna", "bert").call<&Keeper::sum>(value, 1);
  eventually("the fetch waits", [&] { return observers["owner"]->seen("weft.rref.fetch").size() == 1; });
  std::thread ending([&] { end("owner"); });  // it waits for its handler
  expect_error([&] { got(std::move(sum)); }, ErrorKind::owner_lost, "owner");
  gate->set();
  ending.join();
}

}  // namespace
}  // namespace weft::rref::arguments_test

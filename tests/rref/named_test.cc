// rref::Named: get or create by name.
#include <weft/rref/rref.h>

#include "tests/rref/rref_support.h"

namespace weft::rref::named_test {
namespace {

// Counts the runs of its constructor, which blocks until the test sets `gate`.
struct Shared : Counted {
  explicit Shared(std::int64_t v) : value(v) {
    ++began;
    gate->wait();
    if (broken) throw std::runtime_error("it broke");
  }
  std::int64_t get() const { return value; }
  void keep(RRef<Box> other) { kept = std::move(other); }
  using Service = rpc::Service<"shared", rpc::Constructor<std::int64_t>, rpc::Method<"get", &Shared::get>,
                               rpc::Method<"keep", &Shared::keep>>;
  std::int64_t value;
  RRef<Box> kept;
  static inline std::shared_ptr<test::Event> gate;
  static inline std::atomic<bool> broken{false};
  static inline std::atomic<int> began{0};
};

// Its constructor takes an RRef.
struct Around : Counted {
  explicit Around(RRef<Box> b) : box(std::move(b)) {}
  std::int64_t get() const { return 1; }
  using Service = rpc::Service<"around", rpc::Constructor<RRef<Box>>, rpc::Method<"get", &Around::get>>;
  RRef<Box> box;
};

std::int64_t never(std::int64_t) {
  Shared::gate->wait();
  throw std::runtime_error("no such number");
}
using Never = rpc::Function<"never", &never>;

class NamedTest : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    start({"owner", "anna", "bert"});
    agent("owner").allow_create<Shared>();
    agent("owner").allow_create<Around>();
    Shared::gate = std::make_shared<test::Event>();
    Shared::broken = false;
    Shared::began = 0;
  }
  void TearDown() override {
    Shared::gate->set();
    RRefTest::TearDown();
  }
  RRef<Shared> shared(const std::string& who, std::int64_t value, const std::string& name = "it") {
    return create<Shared>(peer(who, "owner"), Named{name}, value);
  }
};

TEST_F(NamedTest, LaterCreatorsGetTheSameObject) {
  Shared::gate->set();
  const auto first = shared("anna", 5);
  EXPECT_EQ(got(first.call<&Shared::get>()), 5);
  const auto second = shared("bert", 5);
  EXPECT_EQ(got(second.call<&Shared::get>()), 5);
  const auto own = shared("owner", 5);
  EXPECT_EQ(got(own.local())->value, 5);
  EXPECT_NE(first.id(), second.id());
  EXPECT_EQ(Counted::made, 1);
  EXPECT_EQ(got(shared("anna", 6, "another").call<&Shared::get>()), 6);
  EXPECT_EQ(Counted::made, 2);
}

TEST_F(NamedTest, ConcurrentCreatorsShareOneCreation) {
  std::vector<RRef<Shared>> all;
  std::vector<rpc::Future<std::int64_t>> values;
  for (int i = 0; i < 4; ++i)
    for (const auto* who : {"anna", "bert", "owner"}) {
      all.push_back(shared(who, 5));
      values.push_back(all.back().call<&Shared::get>());
    }
  Shared::gate->set();
  for (auto& value : values) EXPECT_EQ(got(std::move(value)), 5);
  EXPECT_EQ(Counted::made, 1);
}

TEST_F(NamedTest, ANamedObjectLivesUntilItsAgentEnds) {
  Shared::gate->set();
  got(shared("anna", 5).ready());
  eventually("no handle is left", [&] { return context("owner")->live_objects().empty(); });
  EXPECT_EQ(Counted::alive, 1);
  EXPECT_EQ(got(shared("bert", 5).call<&Shared::get>()), 5);
  EXPECT_EQ(Counted::made, 1);
  end("owner");
  EXPECT_EQ(Counted::alive, 0);
}

TEST_F(NamedTest, OtherArgumentsAreRefused) {
  Shared::gate->set();
  got(shared("anna", 5).ready());
  expect_error([&] { got(shared("bert", 6).ready()); }, ErrorKind::already_exists,
               "created with other arguments: shared.new 5, now shared.new 6");
  EXPECT_EQ(kind_of([&] { got(create<Box>(peer("bert", "owner"), Named{"it"}, 5).ready()); }),
            ErrorKind::already_exists)
      << "nor may another type have the name";
  EXPECT_EQ(got(shared("bert", 5).call<&Shared::get>()), 5);
}

TEST_F(NamedTest, CreatorsWithDifferentRRefArgumentsAreRefused) {
  const auto box = create<Box>(peer("anna", "owner"), 1), other = create<Box>(peer("anna", "owner"), 1);
  got(box.ready());
  got(other.ready());
  const auto around = [&](const RRef<Box>& b) {
    return create<Around>(peer("anna", "owner"), Named{"around"}, b);
  };
  got(around(box).ready());
  got(around(box).ready());
  EXPECT_EQ(kind_of([&] { got(around(other).ready()); }), ErrorKind::already_exists);
}

TEST_F(NamedTest, AFailedCreationIsReportedToAllWaitersAndTriedAgain) {
  Shared::broken = true;
  const auto first = shared("anna", 5);
  auto first_ready = first.ready();
  eventually("it is being created", [] { return Shared::began == 1; });
  const auto second = shared("bert", 5);
  auto second_ready = second.ready();
  Shared::gate->set();
  for (auto* ready : {&first_ready, &second_ready}) {
    const auto message = message_of([&] { got(std::move(*ready)); });
    EXPECT_NE(message.find("it broke"), std::string::npos) << message;
  }
  Shared::broken = false;
  EXPECT_EQ(got(shared("bert", 5).call<&Shared::get>()), 5);
}

TEST_F(NamedTest, ACreationWhoseArgumentsFailLeavesTheNameFree) {
  agent("owner").serve<Never>();
  const auto value = remote<Never>(peer("anna", "owner"), 5);
  const auto failed = create<Shared>(peer("anna", "owner"), Named{"it"}, value);
  Shared::gate->set();
  const auto message = message_of([&] { got(failed.ready()); });
  EXPECT_NE(message.find("no such number"), std::string::npos) << message;
  EXPECT_EQ(Shared::began, 0);
  EXPECT_EQ(got(shared("bert", 6).call<&Shared::get>()), 6);
}

}  // namespace
}  // namespace weft::rref::named_test

// An RRef to a derived object as an RRef to its base; and the text and the owner of an RRef.
#include <weft/rref/rref.h>

#include <sstream>
#include <unordered_map>

#include "tests/rref/rref_support.h"

namespace weft::rref::base_test {
namespace {

struct Shape : Counted {
  virtual ~Shape() = default;
  virtual double area() const = 0;
  std::string name() const { return "a shape"; }
  using Service =
      rpc::Service<"base.shape", rpc::Method<"area", &Shape::area>, rpc::Method<"name", &Shape::name>>;
};
struct Padding {
  virtual ~Padding() = default;
  std::int64_t padding = 17;
};
// Square has its own service. `Shape` is not its first base.
struct Square : Padding, Shape {
  explicit Square(double s) : side(s) {}
  double area() const override { return side * side; }
  void grow(double by) { side += by; }
  using Service = rpc::Service<"base.square", rpc::Constructor<double>, rpc::Method<"grow", &Square::grow>>;
  double side;
};

rpc::Task<double> twice_the_area(RRef<Shape> shape) { co_return 2 * co_await shape.call<&Shape::area>(); }
using TwiceTheArea = rpc::Function<"base.twice_the_area", &twice_the_area>;

// Conversions go one way, and only to bases.
static_assert(std::is_convertible_v<RRef<Square>, RRef<Shape>>);
static_assert(!std::is_constructible_v<RRef<Square>, RRef<Shape>>);
static_assert(!std::is_constructible_v<RRef<Box>, RRef<Square>>);

// Lists methods that it inherits: one of a base without a service, one that the base's service lists too.
struct Sized {
  std::int64_t size() const { return 4; }
};
struct Crate : Sized, Shape {
  double area() const override { return 1; }
  using Service =
      rpc::Service<"base.crate", rpc::Method<"size", &Crate::size>, rpc::Method<"name", &Crate::name>>;
};

class BaseTest : public RRefTest {
 protected:
  void SetUp() override {
    RRefTest::SetUp();
    start({"owner", "user", "third"});
    agent("owner").allow_create<Square>();
    serve<Shape>(agent("owner"));
    agent("third").serve<TwiceTheArea>();
  }
};

TEST_F(BaseTest, MethodsOfTheBaseRunOnTheObject) {
  const auto square = create<Square>(peer("user", "owner"), 3.0);
  const RRef<Shape> shape = square;
  EXPECT_EQ(shape.id(), square.id());
  EXPECT_EQ(got(shape.call<&Shape::area>()), 9);
  EXPECT_EQ(got(square.call<&Shape::name>()), "a shape") << "its own RRef has the base's methods too";
  got(square.call<&Square::grow>(1.0));
  EXPECT_EQ(got(shape.remote<&Shape::area>().to_here()), 16);
}

TEST_F(BaseTest, InheritedMethodsOfItsServiceAreCalled) {
  agent("third").allow_create<Crate>();  // and does not serve<Shape>()
  const auto crate = create<Crate>(peer("user", "third"));
  EXPECT_EQ(got(crate.call<&Crate::size>()), 4);
  EXPECT_EQ(got(crate.remote<&Crate::size>().to_here()), 4);
  EXPECT_EQ(got(crate.call<&Crate::name>()), "a shape");
  agent("user").serve(std::make_shared<Crate>());
  EXPECT_EQ(got(peer("third", "user").call<Crate, &Crate::size>()), 4);
  const RRef<std::int64_t> size = remote<Crate, &Crate::size>(peer("third", "user"));
  EXPECT_EQ(got(size.to_here()), 4);
}

TEST_F(BaseTest, IsPassedWhereTheBaseIsDeclared) {
  const auto square = create<Square>(peer("user", "owner"), 3.0);
  EXPECT_EQ(got(peer("user", "third").call<TwiceTheArea>(square)), 18);
}

TEST_F(BaseTest, TheObjectHasPrecedenceOverAServedObjectOfTheBase) {
  struct Point : Shape {
    double area() const override { return 0; }
  };
  agent("user").serve<Shape>(std::make_shared<Point>());
  const auto square = local(agent("user"), std::make_shared<Square>(2.0));
  EXPECT_EQ(got(RRef<Shape>(square).call<&Shape::area>()), 4);
}

TEST_F(BaseTest, TheOwnerSeesTheObjectAsItsBase) {
  const auto mine = std::make_shared<Square>(2.0);
  const RRef<Shape> shape = local(agent("owner"), mine);
  EXPECT_EQ(got(shape.local()).get(), static_cast<Shape*>(mine.get()));
}

TEST_F(BaseTest, ConversionKeepsCallOptions) {
  const auto square = create<Square>(peer("user", "owner"), 3.0);
  const RRef<Shape> hurried = square.with(rpc::CallOptions{.timeout = std::chrono::nanoseconds{1}});
  EXPECT_EQ(kind_of([&] { got(hurried.call<&Shape::area>()); }), ErrorKind::deadline_exceeded);
}

TEST_F(BaseTest, TheBaseIsCalledOnlyWhereItIsServed) {
  const auto square = local(agent("third"), std::make_shared<Square>(2.0));
  EXPECT_EQ(kind_of([&] { got(RRef<Shape>(square).call<&Shape::area>()); }), ErrorKind::not_found);
}

TEST_F(BaseTest, TheTextOfAnRRefNamesTypeIdAndOwner) {
  const auto square = create<Square>(peer("user", "owner"), 3.0);
  const std::string id = to_string(square.id());
  EXPECT_EQ(to_string(square),
            "rref<base.square> " + id + " on owner, fork " + to_string(*square.reference()->fork()));
  std::ostringstream out;
  out << local(agent("owner"), std::int64_t{5}) << ' ' << RRef<Box>();
  EXPECT_EQ(out.str().substr(0, 10), "rref<i64> ");
  EXPECT_NE(out.str().find(" on owner rref<box> (none)"), std::string::npos) << out.str();
}

// PyTorch's test_owner_equality.
TEST_F(BaseTest, OwnersAreComparableAndAreKeys) {
  const auto a = create<Box>(peer("user", "owner"), 1), b = create<Box>(peer("user", "owner"), 2),
             c = create<Box>(peer("user", "third"), 3);
  EXPECT_EQ(a.owner(), b.owner());
  EXPECT_NE(a.owner(), c.owner());
  EXPECT_EQ(a.owner(), agent("owner").id());
  EXPECT_NE(a.id(), b.id());
  std::unordered_map<rpc::AgentId, int> count;
  for (const auto* box : {&a, &b, &c}) ++count[box->owner()];
  EXPECT_EQ(count.size(), 2U);
  EXPECT_EQ(count[agent("owner").id()], 2);
}

}  // namespace
}  // namespace weft::rref::base_test

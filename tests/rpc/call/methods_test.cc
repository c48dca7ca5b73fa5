// The methods that an agent serves: how they are registered and listed.
#include "tests/support/cluster.h"

namespace weft::rpc::methods_test {
namespace {

using namespace test;

struct Point {
  double x = 0, y = 0;
};
WEFT_CODEC(Point, x, y)

class Plane {
 public:
  explicit Plane(std::string own = {}) : own_(std::move(own)) {}
  std::string name() const { return own_; }
  Task<std::optional<Point>> nearest(CallContext&, Point to, std::vector<std::int32_t> among) {
    co_return among.empty() ? std::nullopt : std::optional(to);
  }
  Future<void> clear() { return Future<void>::made(Result<void>{}); }
  using Service =
      rpc::Service<"plane", Constructor<std::string>, Method<"name", &Plane::name, non_blocking>,
                   Method<"nearest", &Plane::nearest>, Method<"clear", &Plane::clear, idempotent>>;

 private:
  std::string own_;
};

double halve(double x) { return x / 2; }
double third(double x) { return x / 3; }
using Halve = Function<"halve", &halve, idempotent, non_blocking>;
void nothing() {}
void create(std::string) {}
using Third = Function<"halve", &third>;
using Ping = Function<"weft.ping", &nothing>;
using New = Function<"plane.new", &create>;

// weft.health, .methods, .pending, .ping, .stats, .stream.close, .stream.next
constexpr std::size_t own_methods = 7;

class MethodsTest : public testing::Test {
 protected:
  std::map<std::string, MethodInfo> listed() {
    std::map<std::string, MethodInfo> all;
    for (MethodInfo& info : got(list_methods(cluster.peer("a", "b")))) {
      const std::string name = info.name;
      EXPECT_TRUE(all.emplace(name, std::move(info)).second) << name << " is listed twice";
    }
    return all;
  }
  std::string already(const std::function<void()>& serve) {
    const auto error = test::error_of(serve);
    EXPECT_TRUE(error);
    if (!error) return {};
    EXPECT_EQ(error->kind(), ErrorKind::already_exists);
    return error->what();
  }

  Cluster cluster{{}, {"a", "b"}};
  Agent& b = cluster["b"];
};

TEST_F(MethodsTest, OfAnEmptyAgentAreThoseOfEveryAgent) {
  const auto all = listed();
  ASSERT_EQ(all.size(), own_methods);
  EXPECT_EQ(all.at("weft.ping").signature, "()->void");
  EXPECT_TRUE(all.at("weft.ping").idempotent);
  for (const char* name : {"weft.health", "weft.pending", "weft.stats"})
    EXPECT_TRUE(all.contains(name)) << name;
  EXPECT_EQ(all.at("weft.stream.next").signature, "(u64,u64,u64,u64)->any");
  EXPECT_EQ(all.at("weft.stream.close").signature, "(u64)->void");
  EXPECT_EQ(
      all.at("weft.methods").result,
      "[MethodInfo{name:str,signature:str,parameters:[str],result:str,idempotent:bool,on_object:bool}]");
}

TEST_F(MethodsTest, AreListedWithTheirTypes) {
  b.serve(std::make_shared<Plane>());
  b.serve<Halve>();
  const auto all = listed();
  ASSERT_EQ(all.size(), own_methods + 4);
  const MethodInfo& nearest = all.at("plane.nearest");
  EXPECT_EQ(nearest.signature, "(Point{x:f64,y:f64},[i32])->Point{x:f64,y:f64}?");
  EXPECT_EQ(nearest.parameters, (std::vector<std::string>{"Point{x:f64,y:f64}", "[i32]"}));
  EXPECT_EQ(nearest.result, "Point{x:f64,y:f64}?");
  EXPECT_FALSE(nearest.idempotent);
  EXPECT_FALSE(nearest.on_object);
  EXPECT_EQ(all.at("plane.clear").signature, "()->void");
  EXPECT_TRUE(all.at("plane.clear").idempotent);
  EXPECT_EQ(all.at("halve").signature, "(f64)->f64");
  EXPECT_TRUE(all.at("halve").idempotent);
}

TEST_F(MethodsTest, MayBeServedWhilePeersCall) {
  const Peer peer = cluster.peer("a", "b");
  EXPECT_EQ(kind_of([&] { got(peer.call<Halve>(1)); }), ErrorKind::not_found);
  b.serve<Halve>();
  EXPECT_EQ(got(peer.call<Halve>(1)), 0.5);
}

TEST_F(MethodsTest, AreServedOnce) {
  b.serve(std::make_shared<Plane>("first"));
  EXPECT_EQ(already([&] { b.serve(std::make_shared<Plane>("second")); }), "'plane.name' is served already");
  b.serve<Halve>();
  EXPECT_EQ(already([&] { b.serve<Halve>(); }), "'halve' is served already");
  EXPECT_EQ(already([&] { b.serve<Third>(); }), "'halve' is served already");
  EXPECT_EQ(already([&] { b.serve<Ping>(); }), "'weft.ping' is served already");
  EXPECT_EQ(got(cluster.peer("a", "b").call<&Plane::name>()), "first");
}

TEST_F(MethodsTest, OfCreatableTypesAreMethodsOfObjects) {
  b.allow_create<Plane>();
  auto all = listed();
  ASSERT_EQ(all.size(), own_methods + 4);
  EXPECT_TRUE(all.at("plane.name").on_object);
  EXPECT_EQ(all.at("plane.new").signature, "(str)->void");
  EXPECT_EQ(all.at("plane.new").result, "plane");
  EXPECT_FALSE(all.at("plane.new").on_object);
  const Peer peer = cluster.peer("a", "b");
  expect_error(
      [&] { got(peer.call<&Plane::name>()); }, ErrorKind::not_found,
      test::whole(
          "b: plane.name: 'plane.name' is a method of objects, and this agent serves no object of its type: "
          "serve() an object, or call the method by an RRef"));
  EXPECT_EQ(already([&] { b.allow_create<Plane>(); }), "'plane.new' is served already");

  b.serve(std::make_shared<Plane>("served too"));
  EXPECT_EQ(got(peer.call<&Plane::name>()), "served too");
  all = listed();
  EXPECT_EQ(all.size(), own_methods + 4);
  EXPECT_FALSE(all.at("plane.name").on_object);
}

TEST_F(MethodsTest, AServedTypeMayBecomeCreatable) {
  b.serve(std::make_shared<Plane>("served"));
  b.allow_create<Plane>();
  EXPECT_EQ(got(cluster.peer("a", "b").call<&Plane::name>()), "served");
  EXPECT_FALSE(listed().at("plane.name").on_object);
}

TEST_F(MethodsTest, AConstructorIsNotCalledAsAMethod) {
  b.allow_create<Plane>();
  EXPECT_EQ(kind_of([&] { got(cluster.peer("a", "b").call<New>("x")); }), ErrorKind::invalid_argument);
}

}  // namespace
}  // namespace weft::rpc::methods_test

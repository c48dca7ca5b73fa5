#include <weft/rpc/endpoint/dynamic_call.h>

#include "tests/support/cluster.h"

namespace weft::rpc::dynamic_call_test {
namespace {

using namespace std::chrono_literals;
using namespace test;

struct Point {
  double x = 0, y = 0;
};
WEFT_CODEC(Point, x, y)

struct Plane {
  Point move(Point from, std::vector<double> by, std::optional<std::string> why) {
    if (by.size() != 2) throw Error(ErrorKind::invalid_argument, "by what?");
    if (why) told.give(*why);
    return {from.x + by[0], from.y + by[1]};
  }
  Future<void> hang(CallContext& call) {
    call.on_cancel([this] { cancelled.set(); });
    hanging.emplace_back();
    auto future = hanging.back().future();
    began.set();
    return future;
  }
  std::string large() { return std::string(100'000, 'x'); }
  using Service = rpc::Service<"plane", Method<"move", &Plane::move>, Method<"hang", &Plane::hang>,
                               Method<"large", &Plane::large>>;

  Handover<std::string> told;
  Event began, cancelled;
  std::vector<Promise<void>> hanging;
};

class DynamicCallTest : public testing::Test {
 protected:
  DynamicCallTest() { cluster["b"].serve(plane); }
  Peer peer() { return cluster.peer("a", "b"); }

  std::shared_ptr<Plane> plane = std::make_shared<Plane>();
  Cluster cluster{{}, {"a", "b"}};
};

void write_move(OutgoingMessage& message) {
  RecordWriter from = message.argument(0).set_record(1);
  from.field(0, "y").set_real(2);
  message.argument(1).set_reals(std::vector{0.5, 0.25});
}

TEST_F(DynamicCallTest, IsServedLikeATypedCall) {
  const DynamicReply reply = got(call_by_name(peer(), "plane.move", 2, write_move));
  ValueReader x, y;
  ASSERT_TRUE(reply.result().find_field("x", 0, x));
  ASSERT_TRUE(reply.result().find_field("y", 1, y));
  EXPECT_EQ(x.get_real(), 0.5);
  EXPECT_EQ(y.get_real(), 2.25);
}

TEST_F(DynamicCallTest, MayHaveNoArguments) {
  const DynamicReply reply = got(call_by_name(peer(), "plane.large", 0, nullptr));
  EXPECT_EQ(reply.result().get_text().size(), 100'000U);
}

TEST_F(DynamicCallTest, ErrorsAreThoseOfATypedCall) {
  const auto refused = test::error_of([&] {
    got(call_by_name(peer(), "plane.move", 2, [](OutgoingMessage& message) {
      message.argument(0).set_record(0);
      message.argument(1).set_reals({});
    }));
  });
  ASSERT_TRUE(refused);
  EXPECT_EQ(std::string(refused->what()), "b: plane.move: by what?");
  EXPECT_EQ(kind_of([&] { got(call_by_name(peer(), "plane.stay", 0, nullptr)); }), ErrorKind::not_found);
  EXPECT_EQ(kind_of([&] { got(call_by_name(peer(), "plane.move", 0, nullptr)); }), ErrorKind::type_mismatch);
  EXPECT_EQ(kind_of([&] { got(call_by_name(peer(), "plane.move", 4, nullptr)); }), ErrorKind::type_mismatch);
}

TEST_F(DynamicCallTest, RethrowsExceptionsOfTheEncoder) {
  EXPECT_THROW(got(call_by_name(peer(), "plane.move", 1,
                                [](OutgoingMessage&) { throw std::out_of_range("no such argument"); })),
               std::out_of_range);
}

TEST_F(DynamicCallTest, MayBeCancelledAndHasItsPeersDeadline) {
  Future<DynamicReply> call = call_by_name(peer(), "plane.hang", 0, nullptr);
  plane->began.wait();
  call.cancel();
  EXPECT_EQ(kind_of([&] { got(std::move(call)); }), ErrorKind::cancelled);
  plane->cancelled.wait();
  EXPECT_EQ(kind_of([&] { got(call_by_name(peer().with({.timeout = 1ms}), "plane.hang", 0, nullptr)); }),
            ErrorKind::deadline_exceeded);
}

TEST_F(DynamicCallTest, ANotificationHasNoReply) {
  const DynamicReply reply = got(call_by_name(peer(), "plane.move", 3,
                                              [](OutgoingMessage& message) {
                                                write_move(message);
                                                message.argument(2).set_variant(1).set_text("because");
                                              },
                                              {.notify = true}));
  EXPECT_EQ(reply.message, nullptr);
  EXPECT_EQ(plane->told.take(), "because");
}

}  // namespace
}  // namespace weft::rpc::dynamic_call_test

#include <weft/rpc/core/within.h>

#include <weft/rpc/core/asio_loop.h>

#include "tests/support/errors.h"

namespace weft::rpc::within_test {
namespace {

using namespace test;
using namespace std::chrono_literals;

std::exception_ptr late() { return std::make_exception_ptr(Error(ErrorKind::deadline_exceeded, "late")); }

TEST(Within, TheResultPassesAndEndsTheTimer) {
  asio::io_context io;
  AsioLoop loop(io);
  Promise<int> promise;
  auto future = within(1h, loop, promise.future(), late());
  io.poll();
  promise.complete(5);
  EXPECT_EQ(future.get(), 5);
  io.restart();
  EXPECT_GT(io.run(), 0U);  // does not wait for an hour
}

TEST(Within, AResultBeforeTheTimerPasses) {
  asio::io_context io;
  AsioLoop loop(io);
  EXPECT_EQ(within(1h, loop, Future<int>::made(5), late()).get(), 5);
  io.run();
}

TEST(Within, ALateResultIsDropped) {
  asio::io_context io;
  AsioLoop loop(io);
  Promise<int> promise;
  auto future = within(1ms, loop, promise.future(), late());
  io.run();
  EXPECT_EQ(message_of([&] { return future.get(); }), "late");
  promise.complete(5);
}

}  // namespace
}  // namespace weft::rpc::within_test

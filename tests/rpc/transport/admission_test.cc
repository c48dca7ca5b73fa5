#include <weft/rpc/transport/admission.h>

#include <weft/rpc/core/asio_loop.h>

#include <gtest/gtest.h>

#include "tests/support/processor_time.h"

namespace weft::rpc::admission_test {
namespace {

// In processor time of this thread.
TEST(Admission, ManyWaitersAreServedInLinearTime) {
  asio::io_context nobody;
  const auto loop = std::make_shared<AsioLoop>(nobody);
  const auto cost = [&](int waiters) {
    const auto admission = std::make_shared<Admission>(Admission::large);
    const auto all_of_it = admission->admit(Admission::large);
    EXPECT_NE(all_of_it, nullptr);
    std::vector<std::shared_ptr<void>> places;
    const auto spent = test::processor_time_of([&] {
      for (int i = 0; i < waiters; ++i) places.push_back(admission->wait(Admission::large, loop, [] {}));
    });
    return spent;
  };
  const auto few = cost(2000), many = cost(40'000);
  EXPECT_LT(many, 60 * few) << "20 times as many";
}

TEST(Admission, WaitersThatGiveUpDoNotAccumulate) {
  asio::io_context context;
  const auto loop = std::make_shared<AsioLoop>(context);
  const auto admission = std::make_shared<Admission>(Admission::large);
  auto all_of_it = admission->admit(Admission::large);
  for (int i = 0; i < 1000; ++i) (void)admission->wait(Admission::large, loop, [] { FAIL(); });
  bool woken = false;
  const auto place = admission->wait(Admission::large, loop, [&] { woken = true; });
  context.run();
  EXPECT_FALSE(woken);
  all_of_it = nullptr;
  context.restart();
  context.run();
  EXPECT_TRUE(woken);
}

}  // namespace
}  // namespace weft::rpc::admission_test

#include <weft/parallel/collectives/nccl/bootstrap.h>
#include <weft/rpc/store/memory_store.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"
#include "tests/support/hand_loop.h"

namespace weft::collectives::nccl::testing {
namespace bootstrap_test {

UniqueId an_id() {
  UniqueId id;
  for (std::size_t i = 0; i < id.bytes.size(); ++i) id.bytes[i] = static_cast<char>(i * 7);  // zeros too
  return id;
}

TEST(NcclBootstrap, AllRanksGetTheIdOfRankZero) {
  const auto loop = std::make_shared<test::HandLoop>();
  const auto store = std::make_shared<rpc::MemoryStore>(loop);
  const auto none = []() -> UniqueId { throw std::logic_error("not this rank's"); };
  auto early = exchange_id(store, "nccl/1", 1, none);
  EXPECT_FALSE(early.ready());
  EXPECT_EQ(exchange_id(store, "nccl/1", 0, an_id).get(), an_id());
  EXPECT_EQ(early.get(), an_id());
  EXPECT_EQ(exchange_id(store, "nccl/1", 2, none).get(), an_id());
}

TEST(NcclBootstrap, WhatIsNoId) {
  const auto loop = std::make_shared<test::HandLoop>();
  const auto store = std::make_shared<rpc::MemoryStore>(loop);
  store->set("nccl/1", "short").get();
  EXPECT_EQ(test::kind_of([&] { return exchange_id(store, "nccl/1", 1, an_id).get(); }),
            rpc::ErrorKind::protocol_error);
}

TEST(NcclBootstrap, TheWaitHasADeadline) {
  const auto loop = std::make_shared<test::HandLoop>();
  const auto store = std::make_shared<rpc::MemoryStore>(loop);
  rpc::CallOptions options;
  options.timeout = std::chrono::hours{1};
  auto late = exchange_id(store, "nccl/1", 1, an_id, options);
  loop->turn();
  EXPECT_FALSE(late.ready());
  loop->advance(std::chrono::hours{2});
  loop->turn();
  ASSERT_TRUE(late.ready());
  EXPECT_EQ(test::kind_of([&] { return late.get(); }), rpc::ErrorKind::deadline_exceeded);
}

}  // namespace bootstrap_test
}  // namespace weft::collectives::nccl::testing

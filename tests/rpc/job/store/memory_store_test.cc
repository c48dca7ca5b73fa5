#include <weft/rpc/job/store/memory_store.h>

#include "tests/support/store_suite.h"

namespace weft::test {

struct MemoryBackend : StoreBackend {
  MemoryBackend() { mine = theirs = memory; }
  ~MemoryBackend() override {
    mine = theirs = memory = nullptr;
    loop->stop();
  }
  std::shared_ptr<rpc::Store> client() override { return memory; }
  void end() override { memory->close(); }

  std::shared_ptr<rpc::AsioLoop> loop = std::make_shared<rpc::AsioLoop>();
  std::shared_ptr<rpc::MemoryStore> memory = std::make_shared<rpc::MemoryStore>(loop);
};

INSTANTIATE_TYPED_TEST_SUITE_P(Memory, StoreSuite, MemoryBackend);

}  // namespace weft::test

namespace weft::rpc::memory_store_test {
namespace {

using namespace std::chrono_literals;

template <class T>
ErrorKind kind_of(Future<T> future) {
  return test::kind_of([&] { return test::got(std::move(future)), 0; }).value_or(ErrorKind::internal);
}

TEST(MemoryStore, CloseFailsItsWaits) {
  auto loop = std::make_shared<AsioLoop>();
  MemoryStore store(loop);
  auto wait = store.get("never");
  EXPECT_EQ(store.waiting(), 1U);
  store.close();
  EXPECT_EQ(kind_of(std::move(wait)), ErrorKind::shut_down);
  EXPECT_EQ(kind_of(store.get("never")), ErrorKind::shut_down);
  store.set("key", "value").get();
  EXPECT_EQ(store.try_get("key").get(), "value");
  EXPECT_EQ(store.waiting(), 0U);
  loop->stop();
}

TEST(MemoryStore, ACancelledWaitLeavesNothingBehind) {
  auto loop = std::make_shared<AsioLoop>();
  MemoryStore store(loop);
  std::vector<Future<std::string>> waits;
  for (int i = 0; i < 100; ++i) waits.push_back(store.get("never"));
  EXPECT_EQ(store.waiting(), 100U);
  for (auto& wait : waits) wait.cancel();
  EXPECT_EQ(store.waiting(), 0U);
  EXPECT_EQ(kind_of(store.get("never", {.timeout = 1ms})), ErrorKind::deadline_exceeded);
  loop->stop();
  EXPECT_EQ(store.waiting(), 0U);
}

}  // namespace
}  // namespace weft::rpc::memory_store_test

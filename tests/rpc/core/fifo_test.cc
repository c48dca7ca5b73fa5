#include <weft/rpc/core/fifo.h>

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <random>

namespace weft::rpc::fifo_test {
namespace {

TEST(Fifo, TakesItemsAtItsFrontToo) {
  Fifo<std::unique_ptr<int>> fifo;
  std::deque<int> same;
  std::mt19937 random(2);
  for (int i = 0; i < 20000; ++i) {
    const auto dice = random() % 100;
    if (dice < 20) {
      fifo.push_front(std::make_unique<int>(i));
      same.push_front(i);
    } else if (dice < (i < 10000 ? 54U : 46U)) {
      fifo.push(std::make_unique<int>(i));
      same.push_back(i);
    } else if (!same.empty()) {
      ASSERT_EQ(*fifo.pop(), same.front());
      same.pop_front();
    }
    ASSERT_EQ(fifo.size(), same.size());
    ASSERT_EQ(fifo.empty(), same.empty());
    if (same.empty()) continue;
    ASSERT_EQ(*fifo.front(), same.front());
    ASSERT_EQ(*fifo[same.size() / 2], same[same.size() / 2]);
    ASSERT_EQ(*fifo[same.size() - 1], same.back());
  }
}

}  // namespace
}  // namespace weft::rpc::fifo_test

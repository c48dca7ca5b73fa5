#include <weft/rpc/core/unique_function.h>

#include <gtest/gtest.h>

#include <array>
#include <string>

namespace weft::rpc::unique_function_test {
namespace {

// Counts the objects that live, wherever they were moved to.
struct Counted {
  explicit Counted(int* alive) : alive_(alive) { ++*alive_; }
  Counted(const Counted& other) noexcept : alive_(other.alive_) { ++*alive_; }
  Counted(Counted&& other) noexcept : alive_(other.alive_) { ++*alive_; }
  ~Counted() { --*alive_; }
  int* alive_;
};

TEST(UniqueFunction, InvokesItsTarget) {
  UniqueFunction<int(int, int)> add = [](int a, int b) { return a + b; };
  EXPECT_EQ(add(2, 3), 5);
  UniqueFunction<int(int)> pointer = +[](int x) { return -x; };
  EXPECT_EQ(pointer(4), -4);
}

TEST(UniqueFunction, IsEmptyUntilFilledAndAfterItIsMovedFrom) {
  UniqueFunction<void()> empty;
  EXPECT_FALSE(empty);
  EXPECT_FALSE(UniqueFunction<void()>(nullptr));
  UniqueFunction<void()> full = [] {};
  EXPECT_TRUE(full);
  empty = std::move(full);
  EXPECT_TRUE(empty);
  EXPECT_FALSE(full);  // NOLINT: that is what is tested
}

TEST(UniqueFunction, TakesMoveOnlyClosures) {
  UniqueFunction<int()> f = [p = std::make_unique<int>(7)] { return *p; };
  auto g = std::move(f);
  EXPECT_EQ(g(), 7);
}

template <std::size_t Size>
void closures_live_once() {
  int alive = 0;
  {
    UniqueFunction<int()> f = [counted = Counted(&alive), room = std::array<char, Size>{}] {
      return *counted.alive_ + static_cast<int>(room[0]);
    };
    EXPECT_EQ(alive, 1);
    UniqueFunction<int()> g = std::move(f);
    EXPECT_EQ(alive, 1);
    EXPECT_EQ(g(), 1);
    f = std::move(g);
    EXPECT_EQ(f(), 1);
    auto& same = f;
    f = std::move(same);
    EXPECT_EQ(f(), 1);
    f = nullptr;
    EXPECT_EQ(alive, 0);
    f = [counted = Counted(&alive)] { return 2; };
    f = [counted = Counted(&alive)] { return 3; };
    EXPECT_EQ(alive, 1);
    EXPECT_EQ(f(), 3);
  }
  EXPECT_EQ(alive, 0);
}

TEST(UniqueFunction, SmallClosuresLiveInside) { closures_live_once<8>(); }
TEST(UniqueFunction, LargeClosuresLiveOutside) { closures_live_once<400>(); }

TEST(UniqueFunction, PassesReferencesThrough) {
  UniqueFunction<std::string&(std::string&)> same = [](std::string& s) -> std::string& { return s; };
  std::string text = "a";
  EXPECT_EQ(&same(text), &text);
  UniqueFunction<std::size_t(std::unique_ptr<int>)> take = [](std::unique_ptr<int> p) { return p ? 1U : 0U; };
  EXPECT_EQ(take(std::make_unique<int>(1)), 1U);
}

struct ThrowsWhenMoved {
  ThrowsWhenMoved() = default;
  ThrowsWhenMoved(const ThrowsWhenMoved&) = default;
  ThrowsWhenMoved(ThrowsWhenMoved&&) noexcept(false) {}
  int operator()() const { return 5; }
};

TEST(UniqueFunction, MovesWithoutMovingATargetThatMayThrow) {
  UniqueFunction<int()> f = ThrowsWhenMoved{};
  static_assert(std::is_nothrow_move_constructible_v<decltype(f)>);
  auto g = std::move(f);
  EXPECT_EQ(g(), 5);
}

}  // namespace
}  // namespace weft::rpc::unique_function_test

#include <weft/rpc/core/inside.h>

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

namespace weft::rpc::inside_test {
namespace {

struct Counted {
  static inline int alive = 0;
  explicit Counted(std::string t) : text(std::move(t)) {
    if (text.empty()) throw std::invalid_argument("empty");
    ++alive;
  }
  Counted(Counted&&) = delete;  // it is made where it stays
  ~Counted() { --alive; }
  std::string text;
};

struct Owner {
  explicit Owner(const std::string& text) : counted([&] { return Counted(text); }) {}
  Inside<Counted, 64> counted;
};

TEST(Inside, LivesAsLongAsItsOwner) {
  {
    Owner owner("it");
    EXPECT_EQ(Counted::alive, 1);
    owner.counted->text += " grows beyond what a short text has room for";
    const Owner& same = owner;
    EXPECT_EQ(same.counted->text, (*owner.counted).text);
    const auto* place = reinterpret_cast<const char*>(&*same.counted);
    EXPECT_TRUE(place >= reinterpret_cast<const char*>(&owner) &&
                place < reinterpret_cast<const char*>(&owner + 1));
  }
  EXPECT_EQ(Counted::alive, 0);
}

TEST(Inside, IsNotDestroyedIfItsConstructorThrows) {
  EXPECT_THROW(Owner(""), std::invalid_argument);
  EXPECT_EQ(Counted::alive, 0);
}

}  // namespace
}  // namespace weft::rpc::inside_test

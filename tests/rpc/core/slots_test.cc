#include <weft/rpc/core/slots.h>

#include <gtest/gtest.h>

#include <string>

namespace weft::rpc::slots_test {
namespace {

TEST(Slots, HoldOneValuePerType) {
  Slots slots;
  EXPECT_EQ(slots.find<int>(), nullptr);
  EXPECT_EQ(slots.share<int>(), nullptr);
  slots.put(std::make_shared<int>(1));
  slots.put(std::make_shared<std::string>("a"));
  EXPECT_EQ(*slots.find<int>(), 1);
  EXPECT_EQ(*slots.find<std::string>(), "a");
  EXPECT_EQ(slots.put(std::make_shared<int>(2)), 2);
  EXPECT_EQ(*slots.share<int>(), 2);
  EXPECT_EQ(slots.find<long>(), nullptr);
}

TEST(Slots, KeepTheirValuesAlive) {
  auto value = std::make_shared<int>(1);
  {
    Slots slots;
    slots.put(value);
    EXPECT_EQ(value.use_count(), 2);
    slots.put(std::make_shared<int>(2));
    EXPECT_EQ(value.use_count(), 1);
  }
}

}  // namespace
}  // namespace weft::rpc::slots_test

#include <weft/rpc/core/base64.h>

#include <weft/rpc/core/error.h>

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::rpc::detail {
namespace {

// RFC 4648, section 10.
TEST(Base64, WritesAndReadsTheStandardsExamples) {
  const std::pair<const char*, const char*> examples[] = {{"", ""},
                                                          {"f", "Zg=="},
                                                          {"fo", "Zm8="},
                                                          {"foo", "Zm9v"},
                                                          {"foob", "Zm9vYg=="},
                                                          {"fooba", "Zm9vYmE="},
                                                          {"foobar", "Zm9vYmFy"}};
  for (const auto& [bytes, text] : examples) {
    EXPECT_EQ(to_base64(bytes), text);
    EXPECT_EQ(from_base64(text), bytes);
  }
}

TEST(Base64, GivesBackAnyBytes) {
  std::string bytes;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes) << i;
    bytes += static_cast<char>(i * 37 % 256);
  }
  EXPECT_EQ(to_base64(std::string("\xff\xff\xfe", 3)), "///+");
}

TEST(Base64, RefusesOtherText) {
  for (const char* text :
       {"Z", "Zg", "Zg=", "Z===", "====", "Zm9v\n", "Zm-_", "Zg==Zg==", "Z=g=", "Zm9v=AAA"})
    EXPECT_EQ(test::kind_of([&] { return from_base64(text); }), ErrorKind::protocol_error) << text;
}

}  // namespace
}  // namespace weft::rpc::detail

#include <weft/rpc/job/store/base64.h>

#include <gtest/gtest.h>

#include <random>

namespace weft::rpc::detail::base64_test {
namespace {

std::string of(std::string_view text) { return to_base64(std::as_bytes(std::span(text))); }

TEST(Base64, AgreesWithRfc4648) {
  EXPECT_EQ(of(""), "");
  EXPECT_EQ(of("f"), "Zg==");
  EXPECT_EQ(of("fo"), "Zm8=");
  EXPECT_EQ(of("foo"), "Zm9v");
  EXPECT_EQ(of("foob"), "Zm9vYg==");
  EXPECT_EQ(of("fooba"), "Zm9vYmE=");
  EXPECT_EQ(of("foobar"), "Zm9vYmFy");
  EXPECT_EQ(of("\xff\xff\xfe"), "///+");
}

TEST(Base64, RoundTrips) {
  std::mt19937 random(3);
  for (std::size_t size = 0; size < 300; ++size) {
    std::vector<std::byte> bytes(size);
    for (auto& byte : bytes) byte = static_cast<std::byte>(random());
    EXPECT_EQ(from_base64(to_base64(bytes)), bytes);
  }
}

TEST(Base64, RefusesMalformedTexts) {
  for (const char* text : {"Z", "Zg", "Zg=", "Zg===", "Z===", "====", "Zh==", "Zm9=", "Zm 9v", "Zm9v\n",
                           "=Zg=", "Zg==Zg==", "Zm-_", "Z=g=", "Zm9v=AAA"})
    EXPECT_FALSE(from_base64(text)) << text;
}

}  // namespace
}  // namespace weft::rpc::detail::base64_test

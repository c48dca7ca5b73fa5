#include <weft/rpc/core/log.h>

#include <gtest/gtest.h>

namespace weft::rpc::log_test {
namespace {

TEST(EscapedText, KeepsReadableText) {
  for (const char* text : {"", "plain: 'text' \\ \"quoted\"", "Zürich, …, 東京, \xf0\x9f\xa7\xb5"})
    EXPECT_EQ(escaped(text), text);
}

TEST(EscapedText, EscapesControlSequences) {
  EXPECT_EQ(escaped("\x1b[31mred\x07\t"), "\\x1b[31mred\\x07\\x09");
  EXPECT_EQ(escaped("\xc2\x9b"
                    "2J"),
            "\\xc2\\x9b2J")
      << "a control sequence of one character";
  EXPECT_EQ(escaped("\xe2\x80\xae"
                    "abc"),
            "\\xe2\\x80\\xae"
            "abc")
      << "text from right to left";
  EXPECT_EQ(escaped("\xff\xc0\xaf\xed\xa0\x80\xe2\x82"), "\\xff\\xc0\\xaf\\xed\\xa0\\x80\\xe2\\x82")
      << "no UTF-8";
  EXPECT_EQ(escaped("one\nweft: two"), "one\n    weft: two");
}

}  // namespace
}  // namespace weft::rpc::log_test

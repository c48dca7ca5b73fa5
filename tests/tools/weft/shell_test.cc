#include "tools/weft/shell.h"

#include <gtest/gtest.h>

namespace weft::tool {
namespace {

TEST(Shell, WordsAreQuotedIfNecessary) {
  EXPECT_EQ(shell_word("a/b-c=1:2"), "a/b-c=1:2");
  EXPECT_EQ(shell_word(""), "''");
  EXPECT_EQ(shell_word("$HOME `x`"), "'$HOME `x`'");
  EXPECT_EQ(shell_word("it's"), R"('it'\''s')");
}

}  // namespace
}  // namespace weft::tool

#include <weft/rpc/security/permissions.h>

#include "tests/support/errors.h"

#include <random>
#include <regex>

namespace weft::test::permissions_test {
namespace {

using rpc::Permissions;

TEST(Permissions, TheFirstMatchingRuleDecides) {
  const auto permissions = Permissions::parse(R"(
    # who may do what
    allow  cert:trainer*   parameters.*
    allow  *               weft.ping      # also whom nothing proves
    deny   cert:intern*    *.delete
    allow  cert:admin      *
    allow	cert:intern7   store.*
    default deny
  )");
  EXPECT_TRUE(permissions.allows("cert:trainer12", "parameters.pull"));
  EXPECT_TRUE(permissions.allows("cert:trainer", "parameters."));
  EXPECT_FALSE(permissions.allows("cert:trainer12", "store.get"));
  EXPECT_FALSE(permissions.allows("psk:trainer12", "parameters.pull"));
  EXPECT_TRUE(permissions.allows("", "weft.ping"));
  EXPECT_FALSE(permissions.allows("", "weft.methods"));
  EXPECT_TRUE(permissions.allows("cert:intern7", "store.get"));
  EXPECT_FALSE(permissions.allows("cert:intern7", "store.delete"));
  EXPECT_TRUE(permissions.allows("cert:admin", "store.delete"));
  EXPECT_TRUE(permissions.allows("cert:admin", "weft.methods"));
  EXPECT_FALSE(permissions.allows("cert:admin2", "store.delete"));
  EXPECT_FALSE(permissions.allows("CERT:admin", "store.delete"));
}

TEST(Permissions, AMethodWithoutARuleIsDeniedUnlessTheDefaultAllowsIt) {
  EXPECT_FALSE(Permissions::parse("").allows("cert:a", "b.c"));
  EXPECT_TRUE(Permissions::parse("default allow").allows("cert:a", "b.c"));
  const auto open = Permissions::parse("deny * store.*\ndefault allow");
  EXPECT_TRUE(open.allows("", "b.c"));
  EXPECT_FALSE(open.allows("cert:a", "store.get"));
}

TEST(Permissions, StarsMatchAnyText) {
  const auto fits = [](const std::string& pattern, std::string_view text) {
    return Permissions::parse("allow * " + pattern).allows("", text);
  };
  EXPECT_TRUE(fits("*", ""));
  EXPECT_TRUE(fits("**", ""));
  EXPECT_TRUE(fits("a*a", "aa"));
  EXPECT_FALSE(fits("a*a", "a"));  // its head and tail do not overlap
  EXPECT_TRUE(fits("a*b*c", "abc"));
  EXPECT_TRUE(fits("a*b*c", "a.b.b.c"));
  EXPECT_FALSE(fits("a*b*c", "acb"));
  EXPECT_TRUE(fits("*ab*ab*", "abab"));
  EXPECT_FALSE(fits("*ab*ab*", "aba"));
  EXPECT_TRUE(fits("*.get", "store.get"));
  EXPECT_FALSE(fits("*.get", "store.gets"));
  EXPECT_FALSE(fits("store", "store.get"));
  EXPECT_TRUE(fits("a.?[b]\\", "a.?[b]\\"));  // all other characters match themselves
  EXPECT_FALSE(fits("a.?", "a.b"));
}

// Compares matches with the standard library's regular expressions, on texts with few different letters.
TEST(Permissions, StarsMatchLikeARegularExpression) {
  std::mt19937_64 random(3);
  const auto some = [&](std::string_view letters, std::size_t most) {
    std::string text(random() % (most + 1), ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    return text;
  };
  int fitting = 0;
  for (int i = 0; i < 5000; ++i) {
    const std::string pattern = "*" + some("ab*", 6), text = some("ab", 8);
    const std::string flipped = pattern.substr(1) + (random() % 2 ? "*" : "");
    for (const std::string& tried : {pattern, flipped}) {
      if (tried.empty()) continue;
      std::string expression;
      for (const char c : tried) expression += c == '*' ? ".*" : std::string(1, c);
      const bool expected = std::regex_match(text, std::regex(expression));
      ASSERT_EQ(Permissions::parse("allow " + tried + " *").allows(text, "m"), expected)
          << tried << " " << text;
      fitting += expected;
    }
  }
  EXPECT_GT(fitting, 500);
}

TEST(Permissions, ErrorsNameTheirLine) {
  const auto message = [](std::string_view text) {
    return message_of([&] { return Permissions::parse(text); });
  };
  EXPECT_EQ(message("allow * *\nalow a b"), "permissions, line 2: found 'alow', expected allow or deny");
  EXPECT_EQ(
      message("allow a"),
      "permissions, line 1: found 'allow a', expected 'allow IDENTITY METHOD' or 'deny IDENTITY METHOD'");
  EXPECT_EQ(
      message("allow a b c"),
      "permissions, line 1: found 'allow a b c', expected 'allow IDENTITY METHOD' or 'deny IDENTITY METHOD'");
  EXPECT_EQ(message("\n\ndefault"),
            "permissions, line 3: found 'default', expected 'default allow' or 'default deny'");
  EXPECT_EQ(message("default maybe"), "permissions, line 1: found 'maybe', expected allow or deny");
  EXPECT_EQ(message("default deny\nallow * *"),
            "permissions, line 2: found a rule after the default, expected the default last");
  EXPECT_EQ(kind_of([] { return Permissions::parse("x"); }), rpc::ErrorKind::invalid_argument);
  EXPECT_EQ(message("allow * weft.ping # fine\r\n"), "(no error)");
}

}  // namespace
}  // namespace weft::test::permissions_test

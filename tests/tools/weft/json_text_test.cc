#include "tools/weft/json_text.h"

#include <gtest/gtest.h>

#include "tests/support/errors.h"

namespace weft::tool::json_text_test {
namespace {

using test::message_of;

std::string lines(const std::string& json, std::size_t width) {
  return on_lines(PrintedJson::parse(json), width);
}

TEST(JsonText, ErrorsStateThePosition) {
  EXPECT_EQ(message_of([] { return parse_json("{\"a\": }"); }),
            "not JSON, at line 1, column 7: syntax error while parsing value - unexpected '}'; expected '[', "
            "'{', or "
            "a literal");
  EXPECT_EQ(message_of([] { return parse_json(""); }).substr(0, 12), "not JSON, at");
  EXPECT_EQ(message_of([] { return parse_json("{\"a\": 1, \"b\": {\"a\": 2}, \"a\": 3}"); }),
            "the JSON names \"a\" twice in one object");
  EXPECT_EQ(message_of([] { return parse_json(std::string(100'000, '[')); }),
            "the JSON is nested too deeply");
  EXPECT_EQ(message_of([] { return parse_json("1e999"); }).substr(0, 9), "not JSON,");
  EXPECT_EQ(message_of([] { return parse_json("\"\xff\""); }).substr(0, 9), "not JSON,");
  EXPECT_EQ(parse_json("{\"a\": {\"a\": [{\"a\": 1}, {\"a\": 2}]}}")["a"]["a"][1]["a"], 2);
}

TEST(JsonText, OneLineHasBlanksAfterCommasAndColons) {
  EXPECT_EQ(on_one_line(PrintedJson::parse("{\"b\":[1,{}],\"a\":null,\"c\":[]}")),
            "{\"b\": [1, {}], \"a\": null, \"c\": []}");
}

TEST(JsonText, ControlCharactersAreEscaped) {
  EXPECT_EQ(on_one_line(PrintedJson("\x1b[31m\x7f\xc2\x9b\xc2\xa0é")),
            "\"\\u001b[31m\\u007f\\u009b\xc2\xa0é\"");
  EXPECT_EQ(on_one_line(PrintedJson("\xff")), "\"\xef\xbf\xbd\"");
  EXPECT_EQ(printable("a \"b\" \\ \x1b]0;title\x07\nnext\r"), "a \"b\" \\ \\u001b]0;title\\u0007\nnext\\r");
  EXPECT_EQ(printable(""), "");
  EXPECT_EQ(printable("\n"), "\n");
}

TEST(JsonText, BreaksValuesThatDoNotFitALine) {
  const std::string json = "{\"name\": \"x\", \"rows\": [[1, 2, 3], [4, 5, 6]], \"none\": {}}";
  EXPECT_EQ(lines(json, 80), json);
  EXPECT_EQ(lines(json, 57), json);
  EXPECT_EQ(lines(json, 56), "{\n  \"name\": \"x\",\n  \"rows\": [[1, 2, 3], [4, 5, 6]],\n  \"none\": {}\n}");
  EXPECT_EQ(lines(json, 25),
            "{\n  \"name\": \"x\",\n  \"rows\": [\n    [1, 2, 3],\n    [4, 5, 6]\n  ],\n  \"none\": {}\n}");
  // The comma counts as a character of the line.
  EXPECT_EQ(lines("[{\"a\":1},{\"a\":1}]", 10), "[\n  {\n    \"a\": 1\n  },\n  {\"a\": 1}\n]");
  EXPECT_EQ(lines("[[]]", 1), "[\n  []\n]");
}

TEST(JsonText, FillsLinesWithNumbers) {
  EXPECT_EQ(lines("[1,2,3,4,5,6,7,8,9]", 12), "[\n  1, 2, 3,\n  4, 5, 6,\n  7, 8, 9\n]");
  EXPECT_EQ(lines("[\"a long text\",2]", 8), "[\n  \"a long text\",\n  2\n]");
}

TEST(JsonText, ExcerptsEndAtAWholeCharacter) {
  EXPECT_EQ(excerpt(std::string(100, 'x')), std::string(60, 'x') + "…");
  EXPECT_EQ(excerpt(std::string(59, 'x') + "éé"), std::string(59, 'x') + "…");
  EXPECT_EQ(excerpt(GivenJson(std::vector<int>(1'000'000, 7))),
            "[7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,…");
  EXPECT_EQ(excerpt(GivenJson(3)), "3");
}

TEST(JsonText, AddFieldKeepsTheOrderAndDoesNotSearch) {
  PrintedJson json;
  // with a search it would take minutes
  for (int i = 100'000; i > 0; --i) add_field(json, std::to_string(i), i);
  EXPECT_EQ(json.size(), 100'000U);
  EXPECT_EQ(json.begin().key(), "100000");
}

}  // namespace
}  // namespace weft::tool::json_text_test

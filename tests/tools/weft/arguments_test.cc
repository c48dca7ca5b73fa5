#include "tools/weft/arguments.h"

#include <weft/rpc/wire/value.h>

#include <gtest/gtest.h>

#include "tests/support/messages.h"
#include "tools/weft/errors.h"

namespace weft::tool::arguments_test {
namespace {

// The arguments in the form in which they arrive, or the error.
std::string arguments(std::vector<std::string> parameters, const std::vector<GivenArgument>& given,
                      std::string name = "m") {
  rpc::MethodInfo info;
  info.name = std::move(name);
  info.parameters = std::move(parameters);
  info.result = "void";
  try {
    const auto values = arguments_of(Method(std::move(info)), given);
    auto message = rpc::OutgoingMessage::request(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) write(message->argument(i), values[i]);
    const auto incoming = test::received(message->seal_request({1, 2, 0}, 3, 0));
    std::string out;
    for (std::size_t i = 0; i < incoming->argument_count(); ++i)
      out += (i == 0 ? "" : " ") + rpc::render(incoming->argument(i));
    return out;
  } catch (const UsageError& error) {
    return std::string("usage: ") + error.what();
  }
}
std::string words(std::vector<std::string> parameters, const std::vector<std::string>& given) {
  std::vector<GivenArgument> all;
  for (const std::string& one : given) all.push_back({one, false});
  return arguments(std::move(parameters), all);
}

TEST(Arguments, AreOneTextEachOrOneListOfAll) {
  EXPECT_EQ(words({}, {}), "");
  EXPECT_EQ(words({}, {"[]"}), "");
  EXPECT_EQ(words({"i8", "str"}, {"1", "\"x\""}), "1 1\"x\"");
  EXPECT_EQ(words({"i8", "str"}, {"[1, \"x\"]"}), "1 1\"x\"");
  EXPECT_EQ(words({"[i8]", "i8"}, {"[1]", "2"}), "[1] 2");
  EXPECT_EQ(words({"[i8]", "i8"}, {"[[1], 2]"}), "[1] 2");
}

TEST(Arguments, ASingleListMayBeTheOnlyArgument) {
  EXPECT_EQ(words({"[i8]"}, {"[1, 2]"}), "[1,2]");
  EXPECT_EQ(words({"[i8]"}, {"[[1, 2]]"}), "[1,2]");
  EXPECT_EQ(words({"[[i8]]"}, {"[[1, 2]]"}), "[[1,2]]");
  EXPECT_EQ(words({"[i8]"}, {"[]"}), "[]");
  EXPECT_EQ(words({"[i8]"}, {"[[]]"}), "[]");
  EXPECT_EQ(words({"i8"}, {"[1]"}), "1");
  EXPECT_EQ(words({"(i8,i8)"}, {"[1, 2]"}), "[1,2]");
  EXPECT_EQ(words({"tensor"}, {"[[1]]"}), words({"tensor"}, {"{\"dtype\": \"int64\", \"data\": [[1]]}"}));
  EXPECT_EQ(words({"i8?"}, {"[]"}), "");
  EXPECT_EQ(words({"i8?"}, {"[1]"}), "<1:1>");
  EXPECT_EQ(words({"P{x:i8}"}, {"[{\"x\": 1}]"}), "{x:1}");
}

TEST(Arguments, TrailingOptionalArgumentsMayBeMissing) {
  EXPECT_EQ(words({"i8", "str?", "i8?"}, {"1"}), "1");
  EXPECT_EQ(words({"i8", "str?", "i8?"}, {"[1]"}), "1");
  EXPECT_EQ(words({"i8", "str?", "i8?"}, {"1", "null"}), "1 nil");
  EXPECT_EQ(words({"i8", "str?", "i8"}, {"1"}),
            "usage: m takes 3 arguments, 1 is given\n  m(i8, str?, i8) -> void");
  EXPECT_EQ(words({"i8"}, {}), "usage: m takes 1 argument, 0 are given\n  m(i8) -> void");
  EXPECT_EQ(words({}, {"1"}), "usage: m takes no arguments, 1 is given\n  m() -> void");
  EXPECT_EQ(words({"i8", "i8"}, {"[1, 2, 3]"}),
            "usage: m takes 2 arguments, 3 are given\n  m(i8, i8) -> void");
  // Operators have defaults that are not listed.
  EXPECT_EQ(arguments({"i8", "i8"}, {{"1", false}}, "aten::add.Tensor"), "1");
}

TEST(Arguments, StringsNeedNoQuotationMarks) {
  EXPECT_EQ(words({"str"}, {"WEFT"}), "4\"WEFT\"");
  EXPECT_EQ(words({"str"}, {"12"}), "2\"12\"");
  EXPECT_EQ(words({"str"}, {"null"}), "4\"null\"");
  EXPECT_EQ(words({"str"}, {"\"12\""}), "2\"12\"");
  EXPECT_EQ(words({"str"}, {""}), "0\"\"");
  EXPECT_EQ(words({"str", "str?"}, {"a b", "c"}), "3\"a b\" <1:1\"c\">");
  EXPECT_EQ(words({"str?"}, {"null"}), "nil");
  EXPECT_EQ(words({"str"}, {"[\"x\"]"}), "1\"x\"");
  EXPECT_EQ(words({"bytes"}, {"QUFB"}), words({"bytes"}, {"{\"base64\": \"QUFB\"}"}));
  EXPECT_EQ(words({"bytes"}, {"1234"}), words({"bytes"}, {"\"1234\""}));
  EXPECT_EQ(words({"bytes"}, {"QUF"}), "usage: the argument: malformed base64: \"QUF\"\n  m(bytes) -> void");
  // A word that looks like JSON is parsed as JSON.
  EXPECT_EQ(words({"str"}, {"\"x"}).substr(0, 28), "usage: the argument: not JSO");
  EXPECT_EQ(words({"str"}, {"{x}"}).substr(0, 28), "usage: the argument: not JSO");
  EXPECT_EQ(words({"str"}, {"[1, 2]"}), "usage: the argument: expected str, found [1, 2]\n  m(str) -> void");
  EXPECT_EQ(arguments({"str"}, {{"WEFT", true}}).substr(0, 28), "usage: the argument: not JSO");
  EXPECT_EQ(arguments({"str"}, {{"\"WEFT\"", true}}), "4\"WEFT\"");
  EXPECT_EQ(words({"str"}, {"\xff"}), "1\"\xff\"");  // any bytes
}

TEST(Arguments, ErrorsNameTheArgumentAndShowTheSignature) {
  EXPECT_EQ(words({"i8", "[f64]"}, {"1", "[1, \"x\"]"}),
            "usage: argument 2[1]: expected f64, found \"x\"\n  m(i8, [f64]) -> void");
  EXPECT_EQ(words({"i8", "P{x:f64}"}, {"[1, {\"x\": \"y\"}]"}),
            "usage: argument 2.x: expected f64, found \"y\"\n  m(i8, P) -> void");
  EXPECT_EQ(words({"[i8]"}, {"[\"x\"]"}),
            "usage: the argument[0]: expected i8, found \"x\"\n  m([i8]) -> void");
  EXPECT_EQ(words({"i8"}, {"[\"x\"]"}), "usage: the argument: expected i8, found \"x\"\n  m(i8) -> void");
  EXPECT_EQ(words({"f64", "f64"}, {"ten", "1"}),
            "usage: argument 1: expected f64, found ten, which is not JSON\n  m(f64, f64) -> void");
  EXPECT_EQ(words({"matrix<"}, {"1"}),
            "usage: the argument is of a type that this program cannot read: matrix<\n  m(matrix<) -> void");
}

}  // namespace
}  // namespace weft::tool::arguments_test

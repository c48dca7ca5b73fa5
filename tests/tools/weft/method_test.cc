#include "tools/weft/method.h"

#include <gtest/gtest.h>

#include "tools/weft/errors.h"

namespace weft::tool::method_test {
namespace {

rpc::MethodInfo listed(std::string name, std::vector<std::string> parameters = {},
                       std::string result = "void") {
  rpc::MethodInfo info;
  info.name = std::move(name);
  info.parameters = std::move(parameters);
  info.result = std::move(result);
  return info;
}

std::string not_found(const std::string& name) {
  const std::vector<rpc::MethodInfo> all{listed("market.last"), listed("market.convert"),
                                         listed("rates.rate"), listed("weft.ping")};
  try {
    return find_method(all, name).name;
  } catch (const UsageError& error) {
    return error.what();
  }
}

TEST(Method, IsShownReadably) {
  const Method method(listed("m",
                             {"f64", "{str:[i32?]}", "<i64|(str,bool)>", "rref<Front{a:i8}>", "enum(i16)"},
                             "Quote{symbol:str,of:[Quote]}"));
  EXPECT_EQ(method.signature(), "(f64, {str: [i32?]}, <i64 | (str, bool)>, rref<Front>, enum(i16)) -> Quote");
  EXPECT_EQ(Method(listed("m")).signature(), "() -> void");
  EXPECT_EQ(Method(listed("m", {"capnp(7)", "tensor"}, "()")).signature(), "(capnp(7), tensor) -> ()");
}

TEST(Method, UnreadableSignaturesAreShownUnchanged) {
  const Method method(listed("m", {"i8", "matrix<<"}, "\x1b[2J"));
  EXPECT_TRUE(method.parameters[0]);
  EXPECT_FALSE(method.parameters[1]);
  EXPECT_FALSE(method.result);
  EXPECT_EQ(method.signature(), "(i8, matrix<<) -> \\u001b[2J");
}

TEST(Method, StructsAreShownOnce) {
  std::vector<Method> methods;
  methods.emplace_back(listed("a", {"Line{from:Point{x:f64,y:f64},to:Point{x:f64,y:f64}}"}));
  methods.emplace_back(listed("b", {"[Point{x:f64,y:f64}]"}, "Tree{children:[Tree],at:Point{x:f64,y:f64}?}"));
  methods.emplace_back(listed("c", {"Point{x:i8}"}));  // another method of that name
  EXPECT_EQ(struct_texts(methods),
            (std::vector<std::string>{"Line {from: Point, to: Point}", "Point {x: f64, y: f64}",
                                      "Tree {children: [Tree], at: Point?}", "Point {x: i8}"}));
}

TEST(Method, AnUnknownNameGetsSuggestions) {
  EXPECT_EQ(not_found("market.last"), "market.last");
  EXPECT_EQ(not_found("market.lst"), "the agent serves no method 'market.lst': did you mean market.last?");
  EXPECT_EQ(not_found("convert"), "the agent serves no method 'convert': did you mean market.convert?");
  EXPECT_EQ(not_found("market"),
            "the agent serves no method 'market': did you mean market.convert or market.last?");
  EXPECT_EQ(not_found("rates.late"), "the agent serves no method 'rates.late': did you mean rates.rate?");
  EXPECT_EQ(not_found("elephant"), "the agent serves no method 'elephant': see weft list");
  EXPECT_EQ(not_found(std::string(100'000, 'x')).substr(0, 12), "the agent se");
}

TEST(Method, PatternsAreShellPatternsOrPartsOfTheName) {
  EXPECT_TRUE(matches("market.last", ""));
  EXPECT_TRUE(matches("market.last", "ket.l"));
  EXPECT_FALSE(matches("market.last", "lost"));
  EXPECT_TRUE(matches("market.last", "market.*"));
  EXPECT_FALSE(matches("market.last", "mark?t"));
  EXPECT_TRUE(matches("market.last", "*.l[ao]st"));
}

}  // namespace
}  // namespace weft::tool::method_test

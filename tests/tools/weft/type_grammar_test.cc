#include "tools/weft/type_grammar.h"

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/rpc.h>

#include <gtest/gtest.h>

#include <random>

#include "tests/support/errors.h"

namespace weft::tool::type_grammar_test {
namespace {

using namespace rpc;
using namespace test;

enum class Color : std::int16_t { red };
enum class Switch : bool { off, on };

struct Empty {};
WEFT_CODEC(Empty)

struct Point {
  double x = 0, y = 0;
};
WEFT_CODEC(Point, x, y)

struct Tree {
  std::optional<Point> place;
  std::vector<Tree> children;
  std::map<std::string, Tree> by_name;
};
WEFT_CODEC(Tree, place, children, by_name)

template <class T>
struct Box {
  T inside{};
};
WEFT_CODEC(Box<unsigned int>, inside)

}  // namespace

namespace nested {
struct Outer {
  struct Inner {
    int a = 0;
  };
  std::map<std::string, Inner> inner;
};
WEFT_CODEC(Outer::Inner, a)
WEFT_CODEC(::weft::tool::type_grammar_test::nested::Outer, inner)
}  // namespace nested

namespace {

std::string again(std::string_view text) { return text_of(*ParsedType::parse(text)); }

template <class... Types>
void round_trip() {
  for (const std::string& text : {type_text<Types>()...}) EXPECT_EQ(again(text), text);
}

TEST(TypeGrammar, ReadsTheTypeTextOfEveryCodec) {
  round_trip<bool, std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t,
             std::uint32_t, std::uint64_t, float, double, std::string, Buffer, void, Unit, Color, Switch>();
  round_trip<std::vector<std::byte>, std::vector<std::vector<std::optional<int>>>, std::array<double, 3>,
             std::map<std::string, std::map<int, Color>>, std::unordered_map<bool, Point>,
             std::optional<std::optional<std::string>>, std::tuple<>, std::tuple<int>,
             std::tuple<int, std::pair<float, Buffer>>, std::variant<int>,
             std::variant<int, int, std::variant<std::string, Unit>, std::optional<Point>>>();
  round_trip<Empty, std::vector<Empty>, Point, Tree, std::pair<Tree, Tree>, Box<unsigned int>, nested::Outer,
             MethodInfo>();
  // Types of Cap'n Proto and of other layers.
  for (const std::string_view text :
       {"capnp(12345)", "[capnp(12345)]", "tensor", "[tensor?]", "rref<f64>", "rref<Point{x:f64,y:f64}>",
        "rref<market>", "rref<weft.store>", "rref<object>", "any", "market"})
    EXPECT_EQ(again(text), text);
}

TEST(TypeGrammar, MakesATree) {
  const auto integer = ParsedType::parse("u16");
  EXPECT_EQ(integer->kind, TypeKind::integer);
  EXPECT_EQ(integer->bits, 16);
  EXPECT_FALSE(integer->is_signed);

  const auto map = ParsedType::parse("{str:[i8]}");
  ASSERT_EQ(map->kind, TypeKind::map);
  EXPECT_EQ(map->parts.at(0)->kind, TypeKind::text);
  EXPECT_EQ(map->parts.at(1)->kind, TypeKind::list);
  EXPECT_TRUE(map->parts.at(1)->parts.at(0)->is_signed);
  EXPECT_EQ(map->levels, 3);

  const auto variant = ParsedType::parse("<enum(i16)|capnp(18446744073709551615)|()>");
  ASSERT_EQ(variant->parts.size(), 3U);
  EXPECT_EQ(variant->parts[0]->kind, TypeKind::enumeration);
  EXPECT_EQ(variant->parts[0]->parts.at(0)->bits, 16);
  EXPECT_EQ(variant->parts[1]->id, ~std::uint64_t{0});
  EXPECT_EQ(variant->parts[2]->kind, TypeKind::tuple);
}

TEST(TypeGrammar, ARecursiveStructRefersToItself) {
  auto made = ParsedType::parse("Tree{value:i32,children:[Tree],left:(Tree?,Twig{of:Tree})}");
  const ParsedType tree = std::move(made);  // which leaves its types where they are
  ASSERT_EQ(tree->kind, TypeKind::record);
  EXPECT_EQ(tree->name, "Tree");
  EXPECT_EQ(tree->fields, (std::vector<std::string>{"value", "children", "left"}));
  const Type& child = *tree->parts[1]->parts[0];
  EXPECT_EQ(child.kind, TypeKind::recursion);
  EXPECT_EQ(child.parts.at(0), &*tree);
  EXPECT_EQ(tree->parts[2]->parts[1]->parts[0]->parts.at(0), &*tree);
  // Outside of its definition, the name is parsed like any other name.
  const auto beside = ParsedType::parse("(Leaf{a:i8},Leaf)");
  EXPECT_EQ(beside->parts[1]->kind, TypeKind::word);
  EXPECT_EQ(beside->parts[1]->name, "Leaf");
}

TEST(TypeGrammar, StructsMayBeNamedLikeTypesAndTemplates) {
  EXPECT_EQ(ParsedType::parse("str{a:i8}")->kind, TypeKind::record);
  EXPECT_EQ(ParsedType::parse("tensor{tensor:tensor}")->fields.at(0), "tensor");
  EXPECT_EQ(ParsedType::parse("i128")->kind, TypeKind::word);
  const auto box = ParsedType::parse("Box<std::pair<int, bool>>{inside:Box<std::pair<int, bool>>?}");
  EXPECT_EQ(box->name, "Box<std::pair<int, bool>>");
  EXPECT_EQ(box->parts[0]->parts[0]->kind, TypeKind::recursion);
  const auto map = ParsedType::parse("{str:::a::B{x:i8}}");
  EXPECT_EQ(map->parts[1]->name, "::a::B");
  EXPECT_EQ(ParsedType::parse("Größe{x:i8}")->name, "Größe");
}

TEST(TypeGrammar, ReportsErrorsWithTheirPosition) {
  const auto wrong = [](std::string_view text) { return message_of([&] { return again(text); }); };
  EXPECT_EQ(wrong(""), "not a type, at byte 0: expected a type or a name, found the end: ");
  EXPECT_EQ(wrong("[i32"), "not a type, at byte 4: expected ']', found the end: [i32");
  EXPECT_EQ(wrong("[i32}"), "not a type, at byte 4: expected ']', found '}': [i32}");
  EXPECT_EQ(wrong("{str}"), "not a type, at byte 4: expected ':', found '}': {str}");
  EXPECT_EQ(wrong("i32 "), "not a type, at byte 3: expected the end, found ' ': i32 ");
  EXPECT_EQ(wrong("<>"), "not a type, at byte 2: a variant without alternatives: <>");
  EXPECT_EQ(wrong("P{x:i8,}"), "not a type, at byte 7: expected a type or a name, found '}': P{x:i8,}");
  EXPECT_EQ(wrong("P{x}"), "not a type, at byte 3: expected ':', found '}': P{x}");
  EXPECT_EQ(wrong("enum(str)"), "not a type, at byte 8: expected an integer type for an enum: enum(str)");
  EXPECT_EQ(wrong("capnp(18446744073709551616)"),
            "not a type, at byte 6: expected a schema's id, found '1': capnp(18446744073709551616)");
  EXPECT_EQ(wrong("A<b"), "not a type, at byte 3: '<' without '>': A<b");
  EXPECT_EQ(wrong("(" + std::string(200, ' ')),
            "not a type, at byte 1: expected a type or a name, found ' ': (" + std::string(59, ' ') + "…");
  EXPECT_EQ(kind_of([&] { return again("?"); }), ErrorKind::invalid_argument);
}

// --- Limits: the text comes from a peer ---

std::string repeated(std::string_view what, std::size_t n) {
  std::string out;
  for (std::size_t i = 0; i < n; ++i) out += what;
  return out;
}

TEST(TypeGrammar, DepthIsLimited) {
  const auto deep = [](std::size_t n) { return repeated("[", n - 1) + "i8" + repeated("]", n - 1); };
  EXPECT_EQ(again(deep(type_limits::levels)), deep(type_limits::levels));
  EXPECT_NE(message_of([&] { return again(deep(type_limits::levels + 1)); }).find("too deeply"),
            std::string::npos);
  EXPECT_EQ(again("i8" + repeated("?", type_limits::levels - 1)),
            "i8" + repeated("?", type_limits::levels - 1));
  EXPECT_TRUE(test::error_of([&] { return again("i8" + repeated("?", type_limits::levels)); }));
  // Optionals count toward the limit at any position.
  EXPECT_TRUE(test::error_of([&] { return again(repeated("[", 60) + "i8" + repeated("?]", 60)); }));
  EXPECT_TRUE(test::error_of([&] { return again(repeated("[", 100'000)); }));
  EXPECT_TRUE(test::error_of([&] { return again(repeated("A{b:", 100'000)); }));
  EXPECT_TRUE(test::error_of([&] { return again(repeated("A<", 100'000)); }));
  EXPECT_TRUE(test::error_of([&] { return again("i8" + repeated("?", 100'000)); }));
}

TEST(TypeGrammar, SizeIsLimited) {
  const std::string many = "(" + repeated("i8,", type_limits::types - 2) + "i8)";
  EXPECT_EQ(again(many), many);
  EXPECT_NE(message_of([&] {
              return again("(" + repeated("i8,", type_limits::types) + "i8)");
            }).find("too many types"),
            std::string::npos);
  EXPECT_NE(message_of([&] { return again(std::string(type_limits::text + 1, 'a')); }).find("the limit is"),
            std::string::npos);
}

TEST(TypeGrammar, RandomTextsRoundTripOrAreRefused) {
  const std::string_view seeds[] = {
      "(str,i32?,Quote{symbol:str,price:f64})",
      "Tree{value:i32,children:[Tree],color:enum(i16)?}",
      "<i64|f64|bool>",
      "{str:{i32:(tensor,rref<Point{x:f64,y:f64}>)}}",
      "[capnp(12345)]",
      "Box<std::pair<int, bool>>{inside:weft.store?}",
  };
  const std::string_view alphabet = "[]{}()<>|,:?.-> abi83264fuстр\0\x1b\xff_$";
  std::mt19937 random(7);
  const auto below = [&](std::size_t n) {
    return std::uniform_int_distribution<std::size_t>(0, n - 1)(random);
  };
  std::size_t read = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string text(seeds[below(std::size(seeds))]);
    for (std::size_t i = 0, n = below(4); i <= n && !text.empty(); ++i) {
      const std::size_t at = below(text.size());
      switch (below(4)) {
        case 0:
          text[at] = alphabet[below(alphabet.size())];
          break;
        case 1:
          text.erase(at, 1 + below(6));
          break;
        case 2:
          text.insert(at, 1, alphabet[below(alphabet.size())]);
          break;
        case 3:
          text.insert(at, seeds[below(std::size(seeds))].substr(below(9), 1 + below(9)));
          break;
      }
    }
    try {
      EXPECT_EQ(again(text), text);
      ++read;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::invalid_argument);
    }
  }
  EXPECT_GT(read, 1000U);
}

}  // namespace
}  // namespace weft::tool::type_grammar_test

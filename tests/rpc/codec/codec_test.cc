#include <weft/rpc/codec/codec.h>

#include <weft/rpc/codec/struct_codec.h>

#include <cmath>
#include <cstring>

#include "tests/support/errors.h"
#include "tests/support/messages.h"

namespace weft::rpc::codec_test {
namespace {

using namespace test;
using namespace std::string_literals;

enum class Color : std::int16_t { red = -1, green = 7 };
enum class Switch : bool { off, on };
enum Plain : std::uint32_t { none = 0, all = 0xffffffff };

Buffer buffer_of(std::size_t size) {
  Buffer buffer = Buffer::allocate(size);
  for (std::size_t i = 0; i < size; ++i) buffer.data()[i] = std::byte(i * 7);
  return buffer;
}

bool same(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

template <class... Types>
void both_ends() {
  const auto one = []<class T>(T) {
    for (const T value : {std::numeric_limits<T>::min(), T{0}, T{1}, std::numeric_limits<T>::max()})
      EXPECT_EQ(travel(value), value) << type_text<T>();
  };
  (one(Types{}), ...);
}

TEST(Codec, IntegersRoundTrip) {
  both_ends<std::int8_t, std::int16_t, std::int32_t, std::int64_t, std::uint8_t, std::uint16_t, std::uint32_t,
            std::uint64_t, long long>();
}

TEST(Codec, FloatingPointNumbersKeepTheirBits) {
  for (const double x : {0.0, -0.0, 1.0 / 3, 1e308, 5e-324, std::numeric_limits<double>::infinity()}) {
    EXPECT_EQ(travel(x), x);
    EXPECT_EQ(std::signbit(travel(x)), std::signbit(x));
  }
  EXPECT_TRUE(std::isnan(travel(std::nan(""))));
  EXPECT_EQ(travel(0.1F), 0.1F);
  EXPECT_EQ(travel(std::numeric_limits<float>::denorm_min()), std::numeric_limits<float>::denorm_min());
}

TEST(Codec, BoolsTextsAndEnumsRoundTrip) {
  EXPECT_EQ(travel(true), true);
  EXPECT_EQ(travel(""s), "");
  EXPECT_EQ(travel("zürich\0!"s), "zürich\0!"s);
  EXPECT_EQ(travel(Color::red), Color::red);
  EXPECT_EQ(travel(all), all);
  EXPECT_EQ(travel(Switch::on), Switch::on);
  travel(Unit{});
}

TEST(Codec, SequencesRoundTrip) {
  EXPECT_EQ(travel(std::vector<int>{}), std::vector<int>{});
  EXPECT_EQ(travel(std::vector{1, -2, INT32_MIN}), (std::vector{1, -2, INT32_MIN}));
  EXPECT_EQ(travel(std::vector<std::int8_t>{-128, 127}), (std::vector<std::int8_t>{-128, 127}));
  EXPECT_EQ(travel(std::vector<long long>{1LL << 62}), std::vector<long long>{1LL << 62});
  EXPECT_EQ(travel(std::vector<std::uint64_t>{~0ULL}), std::vector<std::uint64_t>{~0ULL});
  EXPECT_EQ(travel(std::vector{0.1, -0.5}), (std::vector{0.1, -0.5}));
  EXPECT_EQ(travel(std::vector{0.1F, 2.0F}), (std::vector{0.1F, 2.0F}));
  EXPECT_EQ(travel(std::vector<bool>{true, false}), (std::vector<bool>{true, false}));
  EXPECT_EQ(travel(std::vector<std::uint8_t>{0, 255}), (std::vector<std::uint8_t>{0, 255}));
  EXPECT_EQ(travel(std::vector{std::byte{3}}), std::vector{std::byte{3}});
  EXPECT_EQ(travel(std::vector{"a"s, ""s}), (std::vector{"a"s, ""s}));
  EXPECT_EQ(travel(std::vector{Color::green}), std::vector{Color::green});
  EXPECT_EQ(travel(std::array{1, 2, 3}), (std::array{1, 2, 3}));
  EXPECT_EQ(travel(std::array<std::uint8_t, 2>{1, 2}), (std::array<std::uint8_t, 2>{1, 2}));
  EXPECT_EQ(travel(std::array{"a"s, "b"s}), (std::array{"a"s, "b"s}));
}

TEST(Codec, LongSequencesRoundTrip) {
  const std::vector<std::string> texts(5000, "some text");
  EXPECT_EQ(travel(texts), texts);
  std::vector<std::int64_t> numbers(100'000);
  for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i * i);
  EXPECT_EQ(travel(numbers), numbers);
  const std::vector<std::vector<int>> rows(300, std::vector<int>(300, 5));
  EXPECT_EQ(travel(rows), rows);
  std::map<int, std::string> map;
  for (int i = 0; i < 3000; ++i) map[i] = std::to_string(i);
  EXPECT_EQ(travel(map), map);
}

TEST(Codec, TypesNest) {
  using Deep =
      std::map<std::string, std::vector<std::optional<std::tuple<int, std::variant<double, std::string>>>>>;
  const Deep deep{{"a", {std::nullopt, std::tuple{1, 0.5}, std::tuple{2, "x"s}}}, {"", {}}};
  EXPECT_EQ(travel(deep), deep);
  const std::unordered_map<int, std::pair<int, bool>> map{{1, {2, true}}, {3, {4, false}}};
  EXPECT_EQ(travel(map), map);
  EXPECT_EQ(travel(std::tuple<>{}), std::tuple<>{});
}

TEST(Codec, OptionalsWithinOptionalsAreDistinguished) {
  using Twice = std::optional<std::optional<int>>;
  EXPECT_EQ(travel(Twice{}), Twice{});
  EXPECT_EQ(travel(Twice{std::optional<int>{}}), Twice{std::optional<int>{}});
  EXPECT_EQ(travel(Twice{3}), Twice{3});
}

TEST(Codec, AVariantKeepsItsIndexWhereTypesAreTheSame) {
  using Same = std::variant<int, int, std::string>;
  for (const Same& value : {Same{std::in_place_index<0>, 1}, Same{std::in_place_index<1>, 1}, Same{"s"s}})
    EXPECT_EQ(travel(value), value);
}

TEST(Codec, BytesAreReadWhetherInlineOrAttached) {
  for (const std::size_t size : {0U, 1U, 1024U, 1025U, 100'000U}) {
    const Buffer sent = buffer_of(size);
    EXPECT_TRUE(same(travel(sent), sent));
    const auto as_vector = travel_as<std::vector<std::byte>>(sent);
    EXPECT_TRUE(std::equal(as_vector.begin(), as_vector.end(), sent.bytes().begin(), sent.bytes().end()));
    EXPECT_TRUE(same(travel_as<Buffer>(as_vector), sent));
  }
  const auto large = test::with_argument([](ValueWriter w) { Codec<Buffer>::encode(w, buffer_of(1025)); });
  EXPECT_EQ(large->prefix().body_bytes, 1088U);
}

TEST(Codec, TypesWithTheSameTextAreCompatible) {
  EXPECT_EQ((travel_as<std::array<int, 2>>(std::vector{1, 2})), (std::array{1, 2}));
  EXPECT_EQ(travel_as<std::vector<int>>(std::array{1, 2}), (std::vector{1, 2}));
  EXPECT_EQ((travel_as<std::array<double, 1>>(std::vector{0.5})), (std::array{0.5}));
  EXPECT_EQ((travel_as<std::array<std::uint8_t, 3>>(buffer_of(3))), (std::array<std::uint8_t, 3>{0, 7, 14}));
  EXPECT_EQ((travel_as<std::unordered_map<int, int>>(std::map<int, int>{{1, 2}})).at(1), 2);
  EXPECT_EQ((travel_as<std::tuple<int, bool>>(std::pair{1, true})), (std::tuple{1, true}));
}

// --- What does not fit ---

TEST(Codec, IntegersOutOfRangeAreRefused) {
  EXPECT_EQ(travel_as<std::int8_t>(std::int64_t{127}), 127);
  EXPECT_EQ(kind_of([] { return travel_as<std::int8_t>(std::int64_t{128}); }), ErrorKind::type_mismatch);
  EXPECT_EQ(kind_of([] { return travel_as<std::uint32_t>(-1); }), ErrorKind::type_mismatch);
  EXPECT_EQ(kind_of([] { return travel_as<std::int64_t>(~std::uint64_t{0}); }), ErrorKind::type_mismatch);
  EXPECT_EQ(
      kind_of([] { return travel_as<std::vector<std::int16_t>>(std::vector<std::int64_t>{0, 40'000}); }),
      ErrorKind::type_mismatch);
  EXPECT_EQ(message_of([] { return travel_as<std::uint8_t>(300); }),
            "expected u8, found 300, which is out of range");
  EXPECT_EQ(travel_as<std::int64_t>(std::uint32_t{7}), 7);  // a wider type takes it
}

TEST(Codec, WrongTypesAreRefusedWithTheExpectedAndTheFoundType) {
  EXPECT_EQ(message_of([] { return travel_as<int>("x"s); }), "expected an integer, found text");
  EXPECT_EQ(message_of([] { return travel_as<int>(0.5); }), "expected an integer, found real");
  EXPECT_EQ(message_of([] { return travel_as<double>(1); }), "expected a floating-point number, found int");
  EXPECT_EQ(message_of([] { return travel_as<std::string>(Unit{}); }), "expected text, found nil");
  EXPECT_EQ(message_of([] { return travel_as<bool>(1); }), "expected bool, found int");
  EXPECT_EQ(message_of([] { return travel_as<Unit>(1), 0; }), "expected nothing, found int");
  EXPECT_EQ(message_of([] { return travel_as<std::vector<int>>("x"s); }), "expected a sequence, found text");
  EXPECT_EQ(message_of([] { return travel_as<std::vector<std::string>>(std::vector{1}); }),
            "expected a list, found ints");
  EXPECT_EQ(message_of([] { return travel_as<std::vector<std::byte>>(std::vector{1}); }),
            "expected bytes, found ints");
  EXPECT_EQ(message_of([] { return travel_as<std::map<int, int>>(std::vector{1}); }),
            "expected a map, found ints");
  EXPECT_EQ(message_of([] { return travel_as<std::optional<int>>(1); }), "expected a variant, found int");
  EXPECT_EQ(message_of([] { return (travel_as<std::array<int, 3>>(std::vector{1})); }),
            "expected 3 elements, found 1");
  EXPECT_EQ(message_of([] { return (travel_as<std::array<std::byte, 3>>(std::vector<std::byte>(4))); }),
            "expected 3 elements, found 4");
  EXPECT_EQ(message_of([] { return (travel_as<std::tuple<int, int>>(std::tuple{1})); }),
            "expected a tuple of 2, found one of 1");
  EXPECT_EQ(message_of([] { return (travel_as<std::tuple<int, int>>(1)); }),
            "expected a tuple of 2, found int");
  EXPECT_EQ(message_of([] {
              return (travel_as<std::variant<int>>(std::variant<int, int>(std::in_place_index<1>, 1)));
            }),
            "expected a variant of 1 alternatives, found alternative 1");
}

// --- Type texts ---

struct Tree {
  int value = 0;
  std::vector<Tree> children;
  std::optional<Color> color;
};
WEFT_CODEC(Tree, value, children, color)

TEST(TypeText, FollowsTheGrammar) {
  EXPECT_EQ(type_text<bool>(), "bool");
  EXPECT_EQ((type_text<std::tuple<std::int8_t, std::int16_t, std::int32_t, std::int64_t>>()),
            "(i8,i16,i32,i64)");
  EXPECT_EQ((type_text<std::tuple<std::uint8_t, std::uint16_t, std::uint32_t, std::uint64_t>>()),
            "(u8,u16,u32,u64)");
  EXPECT_EQ((type_text<std::pair<float, double>>()), "(f32,f64)");
  EXPECT_EQ(type_text<std::string>(), "str");
  EXPECT_EQ(type_text<Buffer>(), "bytes");
  EXPECT_EQ(type_text<std::vector<std::byte>>(), "bytes");
  EXPECT_EQ(type_text<std::vector<std::vector<int>>>(), "[[i32]]");
  EXPECT_EQ((type_text<std::array<int, 3>>()), "[i32]");
  EXPECT_EQ((type_text<std::map<std::string, std::optional<int>>>()), "{str:i32?}");
  EXPECT_EQ((type_text<std::unordered_map<int, bool>>()), "{i32:bool}");
  EXPECT_EQ((type_text<std::variant<int, std::string>>()), "<i32|str>");
  EXPECT_EQ(type_text<Color>(), "enum(i16)");
  EXPECT_EQ(type_text<Switch>(), "enum(bool)");
  EXPECT_EQ(type_text<void>(), "void");
  EXPECT_EQ(type_text<Unit>(), "void");
  EXPECT_EQ(type_text<std::tuple<>>(), "()");
  EXPECT_EQ(type_text<Tree>(), "Tree{value:i32,children:[Tree],color:enum(i16)?}");
  EXPECT_EQ((type_text<std::pair<Tree, Tree>>()),
            "(Tree{value:i32,children:[Tree],color:enum(i16)?},Tree{value:i32,children:[Tree],color:enum("
            "i16)?})");
}

TEST(Codec, RecursiveTypesRoundTrip) {
  const Tree tree{1, {{2, {}, {}}, {3, {{4, {}, Color::green}}, {}}}, Color::red};
  const Tree again = travel(tree);
  ASSERT_EQ(again.children.size(), 2U);
  EXPECT_EQ(again.children[1].children[0].value, 4);
  EXPECT_EQ(again.children[1].children[0].color, Color::green);
  EXPECT_EQ(again.color, Color::red);
}

TEST(Codec, OnlyTypesWithACodecAreTransferable) {
  struct Unknown {};
  static_assert(Transferable<int> && Transferable<std::vector<Tree>>);
  static_assert(!Transferable<Unknown> && !Transferable<int*> && !Transferable<char> &&
                !Transferable<const char*>);
}

}  // namespace
}  // namespace weft::rpc::codec_test

#include "tools/weft/json_value.h"

#include <weft/rpc/codec/capnp_codec.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/wire/checksum.h>
#include <weft/rpc/wire/internal/capnp_access.h>

#include <cmath>

#include "tests/tools/weft/json_support.h"

namespace weft::tool::json_value_test {
namespace {

using namespace std::string_literals;
using rpc::type_text;
using rpc::ValueWriter;

enum class Color : std::int16_t { red = -1, green = 7 };

struct Quote {
  std::string symbol;
  double price = 0;
  std::optional<std::int32_t> size;
  friend bool operator==(const Quote&, const Quote&) = default;
};
WEFT_CODEC(Quote, symbol, price, size)

struct Tree {
  int value = 0;
  std::vector<Tree> children;
  friend bool operator==(const Tree&, const Tree&) = default;
};
WEFT_CODEC(Tree, value, children)

// JSON is sent as Codec<T> sends the value, and printed again in its original form.
template <class T>
void both_ways(const std::string& json, const T& value) {
  SCOPED_TRACE(type_text<T>() + " " + json);
  const auto codec = test::with_argument([&](ValueWriter writer) { rpc::Codec<T>::encode(writer, value); });
  EXPECT_EQ(wire(type_text<T>(), json), rpc::render(codec->argument(0)));
  const auto type = ParsedType::parse(type_text<T>());
  EXPECT_EQ(sent(*type, json)->argument(0).kind(), codec->argument(0).kind());  // packed or not
  EXPECT_EQ(rpc::Codec<T>::decode(sent(*type, json)->argument(0)), value);
  EXPECT_EQ(printed(value), json);
}

TEST(JsonValue, IsSentAsByTheCodecs) {
  both_ways<bool>("true", true);
  both_ways<std::int8_t>("-128", -128);
  both_ways<std::int64_t>("-9223372036854775808", std::numeric_limits<std::int64_t>::min());
  both_ways<std::int64_t>("9223372036854775807", std::numeric_limits<std::int64_t>::max());
  both_ways<std::uint64_t>("18446744073709551615", ~std::uint64_t{0});
  both_ways<std::uint64_t>("9007199254740993", 9007199254740993);  // not representable as a double
  both_ways<std::uint8_t>("255", 255);
  both_ways<double>("0.1", 0.1);
  both_ways<double>("-0.0", -0.0);
  both_ways<float>("0.1", 0.1F);
  both_ways<double>("\"Infinity\"", HUGE_VAL);
  both_ways<float>("\"-Infinity\"", -HUGE_VALF);
  both_ways<Color>("-1", Color::red);
  both_ways<std::string>("\"zürich\\u0000 \\\" \\u001b\\u009b\"", "zürich\0 \" \x1b\xc2\x9b"s);
  both_ways<std::vector<std::byte>>("{\"base64\": \"AAEC/w==\"}",
                                    {std::byte{0}, std::byte{1}, std::byte{2}, std::byte{255}});
  both_ways<std::vector<int>>("[1, -2]", {1, -2});
  both_ways<std::vector<std::int64_t>>("[]", {});
  both_ways<std::vector<std::uint32_t>>("[1, 2]", {1, 2});
  both_ways<std::vector<double>>("[0.5, \"Infinity\"]", {0.5, HUGE_VAL});
  both_ways<std::vector<float>>("[0.1, 3.4028235e+38]", {0.1F, std::numeric_limits<float>::max()});
  both_ways<std::vector<bool>>("[true, false]", {true, false});
  both_ways<std::vector<Color>>("[7]", {Color::green});
  both_ways<std::vector<std::vector<std::string>>>("[[\"a\"], []]", {{"a"}, {}});
  both_ways<std::tuple<int, std::string, bool>>("[1, \"x\", false]", {1, "x", false});
  both_ways<std::tuple<>>("[]", {});
  both_ways<std::optional<int>>("null", std::nullopt);
  both_ways<std::optional<int>>("3", 3);
  both_ways<std::map<std::string, int>>("{\"\": 2, \"a\": 1}", {{"a", 1}, {"", 2}});
  both_ways<std::map<int, std::string>>("[[1, \"a\"], [2, \"b\"]]", {{1, "a"}, {2, "b"}});
  both_ways<std::map<int, std::string>>("[]", {});
  both_ways<std::map<std::string, int>>("{}", {});
  both_ways<std::variant<int, std::string, int>>(
      "{\"index\": 2, \"value\": 5}", std::variant<int, std::string, int>(std::in_place_index<2>, 5));
  both_ways<Quote>("{\"symbol\": \"X\", \"price\": 1.5, \"size\": null}", {"X", 1.5, {}});
  both_ways<std::vector<Quote>>("[{\"symbol\": \"X\", \"price\": 1.5, \"size\": 3}]", {{"X", 1.5, 3}});
  both_ways<Tree>("{\"value\": 1, \"children\": [{\"value\": 2, \"children\": []}]}", {1, {{2, {}}}});
  EXPECT_EQ(again("f64", "\"NaN\""), "\"NaN\"");
  EXPECT_EQ(again("void", "null"), "null");
}

TEST(JsonValue, LargeBytesAreSentAsAttachments) {
  const std::vector<std::byte> bytes(2000, std::byte{'a'});
  const std::string json = printed(bytes);
  const auto message = sent(*ParsedType::parse("bytes"), json);
  EXPECT_EQ(message->argument(0).kind(), rpc::ValueKind::attachment);
  EXPECT_EQ(rpc::Codec<std::vector<std::byte>>::decode(message->argument(0)), bytes);
  EXPECT_EQ(printed(rpc::Buffer::copy(bytes)), json);
  EXPECT_EQ(wire("bytes", "\"YWE=\""),
            "bytes(2:" + std::to_string(rpc::crc32c(std::as_bytes(std::span("aa", 2)))) + ")");
}

TEST(JsonValue, NumbersMayHaveOtherSpellings) {
  EXPECT_EQ(wire("i32", "3.0"), "3");
  EXPECT_EQ(wire("u8", "2e2"), "200");
  EXPECT_EQ(wire("f64", "3"), "3");
  EXPECT_EQ(wire("[f64]", "[1, 2]"), "[1,2]");
  EXPECT_EQ(wire("f64", "18446744073709551616"), "18446744073709551616");
}

TEST(JsonValue, MissingFieldsAreOmitted) {
  EXPECT_EQ(wire(type_text<Quote>(), "{\"price\": 2}"), "{price:2}");
  EXPECT_EQ(wire(type_text<Quote>(), "{}"), "{}");
  const auto type = ParsedType::parse(type_text<Quote>());
  EXPECT_EQ(rpc::Codec<Quote>::decode(sent(*type, "{\"size\": 4}")->argument(0)), (Quote{"", 0, 4}));
}

TEST(JsonValue, MapsMayBeObjectsOrListsOfPairs) {
  EXPECT_EQ(wire("{str:i8}", "[[\"a\", 1]]"), wire("{str:i8}", "{\"a\": 1}"));
  EXPECT_EQ(wire("{i32:bool}", "{\"-1\": true}"), wire("{i32:bool}", "[[-1, true]]"));
  EXPECT_EQ(wire("{(i8,str):void}", "{\"[1, \\\"x\\\"]\": null}"),
            wire("{(i8,str):void}", "[[[1, \"x\"], null]]"));
  EXPECT_EQ(refusal("{i32:bool}", "{\"x\": true}"), ".x: expected a key of type i32");
  EXPECT_EQ(refusal("{i32:bool}", "{\"1.5\": true}"), "[\"1.5\"]: expected i32, found 1.5");
  EXPECT_EQ(refusal("{i32:bool}", "[[1, true, 2]]"), "[0]: expected [key, value], found [1, true, 2]");
  EXPECT_EQ(refusal("{i32:bool}", "[[1, true], [1, false]]"), "[1]: the key 1 occurs twice");
  EXPECT_EQ(refusal("{i32:bool}", "3"), "expected {i32:bool}, found 3");
}

TEST(JsonValue, AnAlternativeIsChosenByItsValue) {
  const std::string number = "<i64|f64|bool>";
  EXPECT_EQ(wire(number, "2"), "<0:2>");
  EXPECT_EQ(wire(number, "2.5"), "<1:2.5>");
  EXPECT_EQ(wire(number, "true"), "<2:true>");
  EXPECT_EQ(wire(number, "{\"index\": 1, \"value\": 2}"), "<1:2>");
  EXPECT_EQ(wire("<[i8]|[str]>", "[\"a\"]"), "<1:[1\"a\"]>");
  EXPECT_EQ(wire("<i8|void>", "null"), "<1:nil>");
  EXPECT_EQ(wire("<i8|<str|f32>>", "0.5"), "<1:<1:0.5>>");
  EXPECT_EQ(refusal(number, "\"x\""), "expected f64, found \"x\"");
  EXPECT_EQ(refusal("<i8|u8>", "[]"), "expected <i8|u8>, found []");
  EXPECT_EQ(refusal("<i8|u8>", "-200"), "expected u8, found -200");
  EXPECT_EQ(refusal("<i8|u8>", "{\"index\": 2, \"value\": 1}"), "there is no alternative 2 in <i8|u8>");
  EXPECT_EQ(refusal("<i8|u8>", "{\"index\": 1, \"value\": -1}"), ".value: expected u8, found -1");
}

TEST(JsonValue, NullIsDistinguishedFromAnOptionalThatHoldsIt) {
  EXPECT_EQ(wire("i8??", "null"), "nil");
  EXPECT_EQ(wire("i8??", "{\"index\": 1, \"value\": null}"), "<1:nil>");
  EXPECT_EQ(wire("i8??", "3"), "<1:<1:3>>");
  for (const char* type : {"i8??", "void?", "tensor?", "i8???"})
    for (const char* json : {"null", "{\"index\": 1, \"value\": null}"})
      EXPECT_EQ(again(type, json), json) << type;
  EXPECT_EQ(again("i8???", "{\"index\": 1, \"value\": {\"index\": 1, \"value\": null}}"),
            "{\"index\": 1, \"value\": {\"index\": 1, \"value\": null}}");
  // For a struct with such fields the JSON is that struct, and for a variant it is the alternative.
  EXPECT_EQ(wire("S{index:i8,value:str?}?", "{\"index\": 1, \"value\": null}"), "<1:{index:1,value:nil}>");
  EXPECT_EQ(wire("<str|i8>?", "{\"index\": 1, \"value\": 5}"), "<1:<1:5>>");
}

TEST(JsonValue, ReportsMismatchesWithTheirPosition) {
  EXPECT_EQ(refusal("i8", "128"), "expected i8, found 128");
  EXPECT_EQ(refusal("i64", "9223372036854775808"), "expected i64, found 9223372036854775808");
  EXPECT_EQ(refusal("u64", "-1"), "expected u64, found -1");
  EXPECT_EQ(refusal("u64", "18446744073709551616"), "expected u64, found 1.8446744073709552e+19");
  EXPECT_EQ(refusal("i64", "1.5"), "expected i64, found 1.5");
  EXPECT_EQ(refusal("i32", "\"1\""), "expected i32, found \"1\"");
  EXPECT_EQ(refusal("f32", "1e39"), "expected f32, found 1e+39");
  EXPECT_EQ(refusal("f64", "null"), "expected f64, found null");
  EXPECT_EQ(refusal("f64", "\"nan\""), "expected f64, found \"nan\"");
  EXPECT_EQ(refusal("bool", "0"), "expected bool, found 0");
  EXPECT_EQ(refusal("str", "0"), "expected str, found 0");
  EXPECT_EQ(refusal("bytes", "\"a\""), "malformed base64: \"a\"");
  EXPECT_EQ(refusal("bytes", "[1]"), "expected base64 bytes, found [1]");
  EXPECT_EQ(refusal("bytes", "{\"base64\": \"\", \"elided\": 3}"),
            "some of these bytes were elided, expected all: print them with --max 0");
  EXPECT_EQ(refusal("void", "0"), "expected void, found 0");
  EXPECT_EQ(refusal("[f64]", "3"), "expected [f64], found 3");
  EXPECT_EQ(refusal("[[i8]]", "[[1, 2], [3, \"x\"]]"), "[1][1]: expected i8, found \"x\"");
  EXPECT_EQ(refusal("(i8,i8)", "[1]"), "expected a list of 2 as (i8,i8), found [1]");
  const std::string quote = type_text<Quote>();
  EXPECT_EQ(refusal("[" + quote + "]", "[{\"symbol\": \"X\"}, {\"symbol\": 3}]"),
            "[1].symbol: expected str, found 3");
  EXPECT_EQ(refusal(quote, "{\"prise\": 1}"), "Quote has no field \"prise\": it has symbol, price, size");
  EXPECT_EQ(refusal(quote, "[]"), "expected Quote{symbol:str,price:f64,size:i32?}, found []");
  EXPECT_EQ(refusal("rref<f64>", "1"), "a value of type rref<f64> cannot be written in JSON");
  EXPECT_EQ(refusal("capnp(7)", "{}"), "a value of type capnp(7) cannot be written in JSON");
  EXPECT_EQ(refusal("any", "1"), "a value of type any cannot be written in JSON");
  EXPECT_EQ(refusal("i8", "\"" + std::string(1000, 'x') + "\""),
            "expected i8, found \"" + std::string(59, 'x') + "…");
}

TEST(JsonValue, NestingIsLimited) {
  const auto nested = [](std::size_t n) { return std::string(n, '[') + std::string(n, ']'); };
  std::string tree = "{\"value\": 1}";
  for (int i = 0; i < 60; ++i) tree = "{\"children\": [" + tree + "]}";
  EXPECT_NE(refusal(type_text<Tree>(), tree).find("nested too deeply"), std::string::npos);
  EXPECT_NE(refusal("tensor", nested(300)).find("nested too deeply"), std::string::npos);
}

// A type of a malicious agent: every level has three alternatives that fail.
TEST(JsonValue, ChoosingAlternativesIsLimited) {
  std::string json = "{\"a\": 1}";
  for (int i = 0; i < 40; ++i) json = "{\"a\": " + json + "}";
  EXPECT_NE(refusal("S{a:<S|S|S>}", json).find("too many possible alternatives"), std::string::npos);
}

// --- Printed values ---

TEST(JsonValue, IsPrintedWithoutAType) {
  EXPECT_EQ(printed(Quote{"X", 0.5, 3}, false),
            "{\"symbol\": \"X\", \"price\": 0.5, \"size\": {\"index\": 1, \"value\": 3}}");
  EXPECT_EQ(printed(std::map<std::string, int>{}, false), "{}");
  EXPECT_EQ(printed(std::vector<float>{0.1F}, false), "[0.1]");
  EXPECT_EQ(printed(0.1F, false), "0.10000000149011612");
  EXPECT_EQ(printed(std::map<std::string, int>{{"\xff", 1}}), "[[{\"base64\": \"/w==\"}, 1]]");
}

TEST(JsonValue, AValueThatDoesNotMatchItsTypeIsPrintedUntyped) {
  const auto quote = [](ValueWriter writer) {
    auto record = writer.set_record(3);
    record.field(0, "price").set_text("?");
    record.field(1, "more").set_list(1)[0].set_nil();
    record.field(2, "size").set_uint(7);
  };
  EXPECT_EQ(printed_of(quote, type_text<Quote>()), "{\"price\": \"?\", \"more\": [null], \"size\": 7}");
  EXPECT_EQ(printed_of(quote, "[f32]"), "{\"price\": \"?\", \"more\": [null], \"size\": 7}");
  EXPECT_EQ(printed_of([](ValueWriter writer) { writer.set_variant(9).set_int(1); }, "<i8|str>"),
            "{\"index\": 9, \"value\": 1}");
  EXPECT_EQ(printed_of([](ValueWriter writer) { writer.set_variant(0).set_int(1); }, "i8?"),
            "{\"index\": 0, \"value\": 1}");
  EXPECT_EQ(printed_of([](ValueWriter writer) { writer.set_ints(std::vector<std::int64_t>{1}); }, "(i8,i8)"),
            "[1]");
}

TEST(JsonValue, StringsThatAreNotUtf8ArePrintedAsBytes) {
  EXPECT_EQ(printed("\xff\x00z"s), "{\"base64\": \"/wB6\"}");
  for (const std::string& bad :
       {"\xc0\xaf"s, "\xed\xa0\x80"s, "\xf4\x90\x80\x80"s, "a\x80"s, "\xe2\x82"s, "\xf0\x80\x80\x80"s}) {
    EXPECT_NE(printed(bad).find("base64"), std::string::npos) << bad;
    EXPECT_EQ(rpc::Codec<std::string>::decode(sent(*ParsedType::parse("str"), printed(bad))->argument(0)),
              bad);
  }
  for (const std::string& good : {"\xf0\x9f\x98\x80"s, "\xef\xbf\xbf"s, "\xc2\x80"s, ""s})
    EXPECT_EQ(printed(good).find("base64"), std::string::npos) << good;
}

TEST(JsonValue, ManyBytesAreElidedOnRequest) {
  EXPECT_EQ(printed(std::vector<std::byte>(5, std::byte{'a'}), true, 3),
            "{\"base64\": \"YWFh\", \"elided\": 2}");
  EXPECT_EQ(printed(std::vector<std::byte>(3, std::byte{'a'}), true, 3), "{\"base64\": \"YWFh\"}");
}

TEST(JsonValue, AnObjectOfCapnpIsPrintedByItsId) {
  EXPECT_EQ(printed_of(
                [](ValueWriter writer) {
                  rpc::detail::object_builder(writer, 12345678901234567890U).initAsAnyStruct(0, 0);
                },
                "capnp(12345678901234567890)"),
            "{\"capnp\": 12345678901234567890}");
}

// A message of a few words may refer to its one large attachment a million times.
TEST(JsonValue, ARepeatedlyNamedAttachmentIsNotPrinted) {
  const auto naming_it = [](std::size_t times) {
    return test::with_argument([&](ValueWriter writer) {
      auto list = writer.set_list(times);
      list[0].set_attachment(rpc::Buffer::allocate(1U << 20));
      for (std::size_t i = 1; i < times; ++i) {
        ValueWriter one = list[i];
        rpc::detail::ValueAccess::builder(one).setAttachment(0);
      }
    });
  };
  EXPECT_EQ(json_of_value(naming_it(2)->argument(0), nullptr, 4).size(), 2U);
  EXPECT_EQ(test::kind_of([&] { return json_of_value(naming_it(100)->argument(0), nullptr, 4); }),
            rpc::ErrorKind::protocol_error);
}

}  // namespace
}  // namespace weft::tool::json_value_test

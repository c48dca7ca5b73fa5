#include <weft/rpc/wire/value.h>

#include "tests/support/errors.h"
#include "tests/support/messages.h"

namespace weft::rpc::value_test {
namespace {

using namespace test;

struct Example {
  ValueKind kind;
  std::function<void(ValueWriter)> write;
  std::function<void(const ValueReader&)> check;
};
const std::vector<Example>& one_of_each() {
  using K = ValueKind;
  using W = ValueWriter;
  using R = const ValueReader&;
  static const std::vector<Example> all{
      {K::nil, [](W w) { w.set_nil(); }, [](R v) { EXPECT_TRUE(v.is_nil()); }},
      {K::boolean, [](W w) { w.set_bool(true); }, [](R v) { EXPECT_TRUE(v.get_bool()); }},
      {K::int_, [](W w) { w.set_int(-5); }, [](R v) { EXPECT_EQ(v.get_int(), -5); }},
      {K::uint, [](W w) { w.set_uint(~std::uint64_t{0}); },
       [](R v) { EXPECT_EQ(v.get_uint(), ~std::uint64_t{0}); }},
      {K::real, [](W w) { w.set_real(0.5); }, [](R v) { EXPECT_EQ(v.get_real(), 0.5); }},
      {K::text, [](W w) { w.set_text("text"); }, [](R v) { EXPECT_EQ(v.get_text(), "text"); }},
      {K::bytes, [](W w) { w.set_bytes(std::as_bytes(std::span("ab", 2))); },
       [](R v) { EXPECT_EQ(v.get_bytes().size(), 2U); }},
      {K::list, [](W w) { w.set_list(2)[1].set_int(1); },
       [](R v) {
         EXPECT_EQ(v.size(), 2U);
         EXPECT_TRUE(v.at(0).is_nil());
         EXPECT_EQ(v.at(1).get_int(), 1);
         EXPECT_EQ(v.int_at(1), 1);
       }},
      {K::record, [](W w) { w.set_record(1).field(0, "a").set_int(1); },
       [](R v) {
         EXPECT_EQ(v.size(), 1U);
         EXPECT_EQ(v.field_name(0), "a");
         EXPECT_EQ(v.field_at(0).get_int(), 1);
       }},
      {K::map,
       [](W w) {
         auto map = w.set_map(1);
         map.key(0).set_text("k");
         map.value(0).set_int(2);
       },
       [](R v) {
         EXPECT_EQ(v.size(), 1U);
         EXPECT_EQ(v.map_key(0).get_text(), "k");
         EXPECT_EQ(v.map_value(0).get_int(), 2);
       }},
      {K::variant, [](W w) { w.set_variant(3).set_text("v"); },
       [](R v) {
         EXPECT_EQ(v.variant_index(), 3U);
         EXPECT_EQ(v.variant_value().get_text(), "v");
       }},
      {K::attachment, [](W w) { w.set_attachment(Buffer::allocate(10)); },
       [](R v) { EXPECT_EQ(v.get_attachment().size(), 10U); }},
      {K::ints, [](W w) { w.set_ints(std::vector<std::int64_t>{1, -2}); },
       [](R v) {
         EXPECT_EQ(v.size(), 2U);
         EXPECT_EQ(v.int_at(1), -2);
       }},
      {K::reals, [](W w) { w.set_reals(std::vector<double>{0.5, 2}); },
       [](R v) { EXPECT_EQ(v.real_at(1), 2); }},
      {K::floats, [](W w) { w.set_floats(std::vector<float>{0.25F, 4}); },
       [](R v) { EXPECT_EQ(v.real_at(0), 0.25); }}};
  return all;  // objects: codec/capnp_codec_test.cc
}

TEST(Value, EachKindRoundTrips) {
  for (const auto& [kind, write, check] : one_of_each()) {
    const auto message = with_argument(write);
    const ValueReader value = message->argument(0);
    ASSERT_EQ(value.kind(), kind);
    check(value);
  }
}

// Each reader on every other kind: the Error names both kinds, and no wrong value is returned.
TEST(Value, ReadersRefuseOtherKinds) {
  struct Reader {
    std::string expected;
    std::vector<ValueKind> accepts;
    std::function<void(const ValueReader&)> read;
  };
  using K = ValueKind;
  const std::vector<Reader> readers{
      {"bool", {K::boolean}, [](const ValueReader& v) { (void)v.get_bool(); }},
      {"an integer", {K::int_, K::uint}, [](const ValueReader& v) { (void)v.get_int(); }},
      {"an integer", {K::int_, K::uint}, [](const ValueReader& v) { (void)v.get_uint(); }},
      {"a floating-point number", {K::real}, [](const ValueReader& v) { (void)v.get_real(); }},
      {"text", {K::text}, [](const ValueReader& v) { (void)v.get_text(); }},
      {"bytes", {K::bytes}, [](const ValueReader& v) { (void)v.get_bytes(); }},
      {"an attachment", {K::attachment}, [](const ValueReader& v) { (void)v.get_attachment(); }},
      {"a sequence",
       {K::list, K::record, K::map, K::ints, K::reals, K::floats},
       [](const ValueReader& v) { (void)v.size(); }},
      {"a list", {K::list}, [](const ValueReader& v) { (void)v.at(0); }},
      {"a sequence of integers", {K::list, K::ints}, [](const ValueReader& v) { (void)v.int_at(1); }},
      {"a sequence of floating-point numbers",
       {K::list, K::reals, K::floats},
       [](const ValueReader& v) { (void)v.real_at(1); }},
      {"a record",
       {K::record},
       [](const ValueReader& v) {
         ValueReader out;
         (void)v.find_field("a", 0, out);
       }},
      {"a record", {K::record}, [](const ValueReader& v) { (void)v.field_name(0); }},
      {"a record", {K::record}, [](const ValueReader& v) { (void)v.field_at(0); }},
      {"a map", {K::map}, [](const ValueReader& v) { (void)v.map_key(0); }},
      {"a map", {K::map}, [](const ValueReader& v) { (void)v.map_value(0); }},
      {"a variant", {K::variant}, [](const ValueReader& v) { (void)v.variant_index(); }},
      {"a variant", {K::variant}, [](const ValueReader& v) { (void)v.variant_value(); }},
  };
  for (const auto& [kind, write, check] : one_of_each()) {
    const auto message = with_argument(write);
    for (const Reader& reader : readers) {
      if (std::find(reader.accepts.begin(), reader.accepts.end(), kind) != reader.accepts.end()) continue;
      const ValueReader value = message->argument(0);
      const auto error = test::error_of([&] { return reader.read(value), 0; });
      ASSERT_TRUE(error) << reader.expected << " from " << to_string(kind);
      EXPECT_EQ(error->kind(), ErrorKind::type_mismatch);
      EXPECT_EQ(error->what(), "expected " + reader.expected + ", found " + std::string(to_string(kind)));
    }
  }
}

TEST(Value, SignedAndUnsignedIntegersConvertIfTheyFit) {
  const auto read = [](auto write, auto get) {
    const auto message = with_argument(write);
    return kind_of([&] { return get(message->argument(0)); });
  };
  const auto as_int = [](const ValueReader& v) { return v.get_int(); };
  const auto as_uint = [](const ValueReader& v) { return v.get_uint(); };
  EXPECT_EQ(read([](ValueWriter w) { w.set_int(5); }, as_uint), std::nullopt);
  EXPECT_EQ(read([](ValueWriter w) { w.set_int(-1); }, as_uint), ErrorKind::type_mismatch);
  EXPECT_EQ(read([](ValueWriter w) { w.set_uint(INT64_MAX); }, as_int), std::nullopt);
  EXPECT_EQ(read([](ValueWriter w) { w.set_uint(std::uint64_t{1} << 63); }, as_int),
            ErrorKind::type_mismatch);
}

TEST(Value, IndicesBeyondTheEndAreRefused) {
  for (const auto& [kind, write, check] : one_of_each()) {
    const auto message = with_argument(write);
    const ValueReader value = message->argument(0);
    const auto beyond = [kind = kind](auto read) {
      EXPECT_EQ(kind_of(read), ErrorKind::protocol_error) << to_string(kind);
    };
    if (kind == ValueKind::list) beyond([&] { return value.at(2); });
    if (kind == ValueKind::record) beyond([&] { return value.field_at(1); });
    if (kind == ValueKind::record) beyond([&] { return value.field_name(1); });
    if (kind == ValueKind::map) beyond([&] { return value.map_key(1); });
    if (kind == ValueKind::map) beyond([&] { return value.map_value(1); });
    if (kind == ValueKind::ints) beyond([&] { return value.int_at(2); });
    if (kind == ValueKind::reals) beyond([&] { return value.real_at(2); });
    if (kind == ValueKind::floats) beyond([&] { return value.real_at(2); });
  }
}

TEST(Value, FieldsAreFoundByNameAtAnyPosition) {
  const auto message = with_argument([](ValueWriter w) {
    auto record = w.set_record(3);
    record.field(0, "a").set_int(0);
    record.field(1, "b").set_int(1);
    record.field(2, "c").set_int(2);
  });
  const ValueReader value = message->argument(0);
  for (const std::size_t guess : {0U, 2U, 100U}) {
    ValueReader field;
    ASSERT_TRUE(value.find_field("c", guess, field));
    EXPECT_EQ(field.get_int(), 2);
    EXPECT_FALSE(value.find_field("d", guess, field));
  }
}

TEST(Value, AMissingAttachmentIsAProtocolError) {
  auto message = OutgoingMessage::request(1);
  message->argument(0).set_attachment(Buffer::allocate(1));
  InboundFrame frame = test::inbound(message->seal_request({1, 1, 0}, 1, 0));
  frame.attachments.clear();
  IncomingMessage again(std::move(frame), {});
  EXPECT_EQ(kind_of([&] { return again.argument(0).get_attachment(); }), ErrorKind::protocol_error);
}

// The elements of a sequence are opened once, because Cap'n Proto charges its traversal limit each time.
TEST(Value, LongSequencesAreReadToTheirEnd) {
  constexpr std::size_t n = 20'000;
  const auto list = with_argument([](ValueWriter w) {
    auto list = w.set_list(n);
    for (std::size_t i = 0; i < n; ++i) list[i].set_text("element");
  });
  const ValueReader value = list->argument(0);
  for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(value.at(i).get_text(), "element");
  auto many = OutgoingMessage::request(300);
  for (std::size_t i = 0; i < 300; ++i) many->argument(i).set_int(static_cast<int>(i));
  const auto arguments = test::received(many->seal_request({1, 1, 0}, 1, 0));
  for (std::size_t i = 0; i < 300; ++i) ASSERT_EQ(arguments->argument(i).get_int(), static_cast<int>(i));
}

TEST(Value, TooLongValuesAreRefusedBeforeTheyAreWritten) {
  EXPECT_EQ(kind_of([] { return with_argument([](ValueWriter w) { w.set_list(std::size_t{1} << 40); }); }),
            ErrorKind::resource_exhausted);
  EXPECT_EQ(kind_of([] {
              return with_argument([](ValueWriter w) {
                w.set_bytes({reinterpret_cast<const std::byte*>(""), std::size_t{1} << 40});  // never read
              });
            }),
            ErrorKind::resource_exhausted);
}

TEST(Value, TextMayHoldZeros) {
  const std::string text("a\0b", 3);
  EXPECT_EQ(with_argument([&](ValueWriter w) { w.set_text(text); })->argument(0).get_text(), text);
}

}  // namespace
}  // namespace weft::rpc::value_test

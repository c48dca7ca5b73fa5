#include <weft/rpc/codec/struct_codec.h>

#include "tests/support/errors.h"
#include "tests/support/messages.h"

// The same struct as three releases of a program know it.
namespace first_release {
struct Quote {
  std::string symbol;
  double price = 0;
};
WEFT_CODEC(Quote, symbol, price)
}  // namespace first_release

namespace second_release {
struct Quote {
  std::string currency = "CHF";
  std::string symbol;
  double price = -1;
  std::vector<int> sizes{1};
};
WEFT_CODEC(Quote, currency, symbol, price, sizes)
}  // namespace second_release

namespace third_release {
struct Quote {
  int price = 0;  // no longer a real
};
WEFT_CODEC(Quote, price)
struct Book {
  std::map<std::string, std::vector<Quote>> quotes;
};
WEFT_CODEC(Book, quotes)
}  // namespace third_release

namespace weft::rpc::struct_codec_test {
namespace {

using namespace test;

struct Wide {
  int a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0, i = 0, j = 0, k = 0, l = 0, m = 0, n = 0, o = 0,
      p = 0;
  int q = 0, r = 0, s = 0, t = 0, u = 0, v = 0, w = 0, x = 0, y = 0, z = 0, A = 0, B = 0, C = 0, D = 0, E = 0,
      F = 0;
};
WEFT_CODEC(Wide, a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t, u, v, w, x, y, z, A, B, C, D, E,
           F)

struct Empty {};
WEFT_CODEC(Empty)

TEST(StructCodec, AStructMayBeEmpty) {
  travel(Empty{});
  EXPECT_EQ(type_text<Empty>(), "Empty{}");
}

TEST(StructCodec, FieldsAreIdentifiedByName) {
  const auto again = travel(second_release::Quote{"USD", "X", 2.5, {3, 4}});
  EXPECT_EQ(again.currency, "USD");
  EXPECT_EQ(again.symbol, "X");
  EXPECT_EQ(again.price, 2.5);
  EXPECT_EQ(again.sizes, (std::vector{3, 4}));
}

TEST(StructCodec, MissingFieldsTakeTheirDefaults) {
  const auto again = travel_as<second_release::Quote>(first_release::Quote{"X", 2.5});
  EXPECT_EQ(again.currency, "CHF");
  EXPECT_EQ(again.symbol, "X");
  EXPECT_EQ(again.price, 2.5);
  EXPECT_EQ(again.sizes, std::vector{1});
}

TEST(StructCodec, UnknownFieldsAreIgnored) {
  const auto again = travel_as<first_release::Quote>(second_release::Quote{"USD", "X", 2.5, {3, 4}});
  EXPECT_EQ(again.symbol, "X");
  EXPECT_EQ(again.price, 2.5);
}

TEST(StructCodec, AnErrorNamesThePathToAFieldOfAnotherType) {
  expect_error([] { return travel_as<third_release::Quote>(first_release::Quote{"X", 2.5}); },
               ErrorKind::type_mismatch, whole("field 'price': expected an integer, found real"));
  const auto nested = test::error_of([] {
    const auto message = test::with_argument([](ValueWriter writer) {
      auto map = writer.set_record(1).field(0, "quotes").set_map(1);
      map.key(0).set_text("a");
      Codec<std::vector<first_release::Quote>>::encode(map.value(0),
                                                       std::vector{first_release::Quote{"X", 1}});
    });
    return Codec<third_release::Book>::decode(message->argument(0));
  });
  EXPECT_STREQ(nested->what(), "field 'quotes': field 'price': expected an integer, found real");
}

TEST(StructCodec, AnotherKindThanARecordIsRefused) {
  EXPECT_EQ(test::message_of([] { return travel_as<first_release::Quote>(1); }),
            "expected a record, found int");
}

TEST(StructCodec, ThirtyTwoFieldsAreEnough) {
  Wide wide;
  wide.a = 1;
  wide.F = 32;
  std::vector<Wide> many(200, wide);
  const auto again = travel(many);
  ASSERT_EQ(again.size(), 200U);
  EXPECT_EQ(again.back().a, 1);
  EXPECT_EQ(again.back().F, 32);
}

TEST(StructCodec, TheTypeTextHasNameAndFields) {
  EXPECT_EQ(type_text<first_release::Quote>(), "Quote{symbol:str,price:f64}");
}

}  // namespace
}  // namespace weft::rpc::struct_codec_test

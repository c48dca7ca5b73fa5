// Thousands of random types and values. JSON that matches a type is printed unchanged. JSON that matches
// another type is rejected. Wire values that match no type are printed nevertheless. A failure names its
// number; WEFT_SEED=number runs that one alone.
#include <cstdlib>
#include <random>

#include "tests/tools/weft/json_support.h"

namespace weft::tool::json_random_test {
namespace {

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  bool one_in(std::size_t n) { return below(n) == 0; }
  std::uint64_t bits() { return engine_(); }

  std::string text() {
    static const std::string_view pieces[] = {"a",  "index", "value", "base64",           "ü",
                                              "\0", "\n",    "\"",    "\xf0\x9f\x98\x80", "7"};
    std::string out;
    for (std::size_t i = below(4); i > 0; --i) out += pieces[below(std::size(pieces))];
    return out;
  }

 private:
  std::mt19937_64 engine_;
};

std::string random_type(Random& random, int depth, std::size_t& names) {
  static const std::string_view plain[] = {"bool",  "i8",   "i16",       "i32",   "i64", "u8",
                                           "u16",   "u32",  "u64",       "f32",   "f64", "str",
                                           "bytes", "void", "enum(i16)", "tensor"};
  if (depth == 0 || random.one_in(4)) return std::string(plain[random.below(std::size(plain))]);
  const auto inner = [&] { return random_type(random, depth - 1, names); };
  switch (random.below(6)) {
    case 0:
      return "[" + inner() + "]";
    case 1:
      return "{" + std::string(plain[random.below(13)]) + ":" + inner() + "}";
    case 2:
      return inner() + "?";
    case 3: {
      std::string out = "(";
      for (std::size_t i = random.below(4), n = i; i > 0; --i) out += (i == n ? "" : ",") + inner();
      return out + ")";
    }
    case 4: {
      std::string out = "<" + inner();
      for (std::size_t i = random.below(3); i > 0; --i) out += "|" + inner();
      return out + ">";
    }
    default: {
      const std::string name = "S" + std::to_string(names++);
      std::string out = name + "{";
      const std::size_t n = random.below(4);
      for (std::size_t i = 0; i < n; ++i) {
        static const std::string_view fields[] = {"a", "index", "value", "base64"};
        out += (i == 0 ? "" : ",") + std::string(fields[i]) + ":" +
               (random.one_in(5) ? "[" + name + "]" : inner());
      }
      return out + "}";
    }
  }
}

// Random JSON of that type, in its printed form.
PrintedJson random_json(Random& random, const Type& type, int depth) {
  const auto part = [&](std::size_t i) { return random_json(random, *type.parts[i], depth - 1); };
  const std::size_t length = depth <= 0 ? 0 : random.below(4);
  PrintedJson json;
  switch (type.kind) {
    case TypeKind::recursion:
      return random_json(random, *type.parts[0], depth);
    case TypeKind::boolean:
      return random.one_in(2);
    case TypeKind::integer: {
      const std::uint64_t bits = random.one_in(3) ? random.bits() : random.below(3);
      const unsigned unused = 64U - type.bits;
      if (type.is_signed) return static_cast<std::int64_t>(bits << unused) >> unused;
      return bits << unused >> unused;
    }
    case TypeKind::enumeration:
      return part(0);
    case TypeKind::real:
      if (random.one_in(8)) return random.one_in(2) ? "NaN" : "-Infinity";
      return static_cast<double>(random.below(1000)) / 8;
    case TypeKind::text:
      return random.text();
    case TypeKind::bytes: {
      static const std::string_view texts[] = {"", "AA==", "AAE=", "AAEC"};
      add_field(json, "base64", texts[random.below(4)]);
      return json;
    }
    case TypeKind::nothing:
      return nullptr;
    case TypeKind::tensor:
      if (random.one_in(4)) return nullptr;
      return PrintedJson::parse(R"({"dtype": "float16", "shape": [2, 1], "data": [[0.5], [2.0]]})");
    case TypeKind::list:
      json = PrintedJson::array();
      for (std::size_t i = 0; i < length; ++i) json.push_back(part(0));
      return json;
    case TypeKind::tuple:
      json = PrintedJson::array();
      for (std::size_t i = 0; i < type.parts.size(); ++i) json.push_back(part(i));
      return json;
    case TypeKind::map:
      json = type.parts[0]->kind == TypeKind::text ? PrintedJson::object() : PrintedJson::array();
      for (std::size_t i = 0; i < length; ++i) {
        PrintedJson key = part(0);
        if (json.is_object()) {
          json[key.get<std::string>()] = part(1);
        } else if (std::none_of(json.begin(), json.end(),
                                [&](const PrintedJson& pair) { return pair[0] == key; })) {
          json.push_back(PrintedJson::array({key, part(1)}));
        }
      }
      return json;
    case TypeKind::optional: {
      if (random.one_in(3)) return nullptr;
      PrintedJson held = part(0);
      const auto inner = type.parts[0]->kind;
      const bool nullable =
          inner == TypeKind::optional || inner == TypeKind::nothing || inner == TypeKind::tensor;
      const bool alike =
          held.is_object() && held.size() == 2 && held.contains("index") && held.contains("value");
      if (!held.is_null() && !(nullable && alike)) return held;
      add_field(json, "index", 1);
      add_field(json, "value", std::move(held));
      return json;
    }
    case TypeKind::variant: {
      const std::size_t index = random.below(type.parts.size());
      add_field(json, "index", index);
      add_field(json, "value", part(index));
      return json;
    }
    case TypeKind::record:
      json = PrintedJson::object();
      for (std::size_t i = 0; i < type.parts.size(); ++i)
        if (!random.one_in(6)) add_field(json, type.fields[i], part(i));
      return json;
    default:
      return nullptr;
  }
}

// A value of any form, including records of tensors and deep nesting.
void random_value(Random& random, rpc::ValueWriter writer, int depth) {
  const std::size_t length = depth <= 0 ? 0 : random.below(4);
  switch (random.below(depth <= 0 ? 12 : 16)) {
    case 0:
      return writer.set_nil();
    case 1:
      return writer.set_bool(random.one_in(2));
    case 2:
      return writer.set_int(static_cast<std::int64_t>(random.bits()));
    case 3:
      return writer.set_uint(random.bits());
    case 4:
      return writer.set_real(std::bit_cast<double>(random.bits()));
    case 5: {
      std::string text = random.text();
      if (random.one_in(2)) text += static_cast<char>(random.bits());
      return writer.set_text(text);
    }
    case 6: {
      const std::string bytes = random.text();
      return writer.set_bytes(std::as_bytes(std::span(bytes)));
    }
    case 7:
      return writer.set_ints(
          std::vector<std::int64_t>(random.below(4), static_cast<std::int64_t>(random.bits())));
    case 8:
      return writer.set_reals(std::vector<double>(random.below(4), std::bit_cast<double>(random.bits())));
    case 9:
      return writer.set_floats(std::vector<float>(
          random.below(4), std::bit_cast<float>(static_cast<std::uint32_t>(random.bits()))));
    case 10: {
      const std::string bytes = random.text();
      return writer.set_attachment(rpc::Buffer::copy(std::as_bytes(std::span(bytes))));
    }
    case 11: {
      static const std::string_view dtypes[] = {"uint8", "float8_e4m3fn", "complex64", "bool", "none"};
      auto record = writer.set_record(4);
      record.field(0, "dtype").set_text(dtypes[random.below(5)]);
      std::vector<std::int64_t> shape(random.below(4));
      for (auto& size : shape)
        size = random.one_in(6) ? static_cast<std::int64_t>(random.bits())
                                : static_cast<std::int64_t>(random.below(4));
      record.field(1, "shape").set_ints(shape);
      if (random.one_in(6)) {
        random_value(random, record.field(2, "data"), depth - 1);
      } else {
        record.field(2, "data").set_bytes(
            std::vector<std::byte>(random.below(20), static_cast<std::byte>(random.bits())));
      }
      if (random.one_in(4)) {
        random_value(random, record.field(3, "layout"), depth - 1);
      } else {
        record.field(3, random.one_in(2) ? "expanded" : "mark")
            .set_ints(
                std::vector<std::int64_t>(random.below(3), static_cast<std::int64_t>(random.below(4)) - 1));
      }
      return;
    }
    case 12: {
      auto list = writer.set_list(length);
      for (std::size_t i = 0; i < length; ++i) random_value(random, list[i], depth - 1);
      return;
    }
    case 13: {
      auto record = writer.set_record(length);
      for (std::size_t i = 0; i < length; ++i)
        random_value(random, record.field(i, random.text()), depth - 1);
      return;
    }
    case 14: {
      auto map = writer.set_map(length);
      for (std::size_t i = 0; i < length; ++i) {
        random_value(random, map.key(i), depth - 1);
        random_value(random, map.value(i), depth - 1);
      }
      return;
    }
    case 15:
      return random_value(random, writer.set_variant(random.below(4)), depth - 1);
  }
}

class JsonRandom : public testing::Test {
 protected:
  // Runs `one` with every seed, or with the seed in the environment.
  template <class F>
  void each(std::uint64_t rounds, F&& one) {
    const char* only = std::getenv("WEFT_SEED");
    for (std::uint64_t seed = only ? std::strtoull(only, nullptr, 10) : 0, end = only ? seed + 1 : rounds;
         seed < end; ++seed) {
      SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed));
      Random random(seed);
      one(random);
      if (HasFailure()) return;
    }
  }
};

TEST_F(JsonRandom, IsPrintedAsGiven) {
  each(4000, [](Random& random) {
    std::size_t names = 0;
    const std::string type = random_type(random, 4, names);
    const auto parsed = ParsedType::parse(type);
    const std::string json = on_one_line(random_json(random, *parsed, 4));
    // The test compares JSON, because the fields of an object may be in another order.
    EXPECT_EQ(parse_json(again(type, json)), parse_json(json)) << type;
  });
}

TEST_F(JsonRandom, ForAnotherTypeIsRefusedOrSent) {
  std::size_t refused = 0, accepted = 0;
  each(4000, [&](Random& random) {
    std::size_t names = 0;
    const std::string type = random_type(random, 4, names), other = random_type(random, 4, names);
    const std::string json = on_one_line(random_json(random, *ParsedType::parse(other), 4));
    try {
      (void)again(type, json);
      ++accepted;
    } catch (const rpc::Error& error) {
      EXPECT_EQ(error.kind(), rpc::ErrorKind::invalid_argument) << type << "\n" << json;
      ++refused;
    }
  });
  if (std::getenv("WEFT_SEED") == nullptr) {
    EXPECT_GT(refused, 1000U);
    EXPECT_GT(accepted, 100U);
  }
}

TEST_F(JsonRandom, ValuesOfAnyFormArePrinted) {
  each(6000, [](Random& random) {
    std::size_t names = 0;
    const auto type = ParsedType::parse(random_type(random, 4, names));
    auto message = rpc::OutgoingMessage::request(1);
    random_value(random, message->argument(0), 5);
    const auto incoming = test::received(message->seal_request({1, 2, 0}, 3, 0));
    for (const Type* declared : {static_cast<const Type*>(nullptr), &*type})
      for (const std::size_t most : {all, std::size_t{1}}) {
        const PrintedJson json = json_of_value(incoming->argument(0), declared, most);
        // The output must be JSON, on one line and on several lines.
        EXPECT_EQ(GivenJson::parse(on_one_line(json)), GivenJson::parse(on_lines(json, 30)));
      }
  });
}

// Changes random bytes of valid JSON.
TEST_F(JsonRandom, DamagedJsonIsRefused) {
  each(4000, [](Random& random) {
    std::size_t names = 0;
    const std::string type = random_type(random, 3, names);
    std::string json = on_one_line(random_json(random, *ParsedType::parse(type), 4));
    for (std::size_t i = random.below(3) + 1; i > 0 && !json.empty(); --i) {
      const std::size_t at = random.below(json.size());
      if (random.one_in(2)) {
        json[at] = "0123456789.-+eE{}[]\",: \\ntf\xff"[random.below(26)];
      } else {
        json.erase(at, 1 + random.below(3));
      }
    }
    const auto error = test::error_of([&] { return again(type, json); });
    if (error) {
      EXPECT_EQ(error->kind(), rpc::ErrorKind::invalid_argument) << type << "\n" << json;
    }
  });
}

}  // namespace
}  // namespace weft::tool::json_random_test

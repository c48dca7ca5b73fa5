#include "tools/weft/json_tensor.h"

#include <cstring>

#include "tests/tools/weft/json_support.h"
#include "tools/weft/dtype.h"

namespace weft::tool::json_tensor_test {
namespace {

using rpc::RecordWriter;
using rpc::ValueWriter;

template <class T>
std::vector<std::byte> bytes_of(std::initializer_list<T> values) {
  std::vector<std::byte> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), std::data(values), bytes.size());
  return bytes;
}

// The record as rpc/tensor/tensor_codec.cc writes it.
struct Record {
  std::string dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> data;
  std::optional<std::vector<std::int64_t>> expanded = {};

  void operator()(ValueWriter writer) const {
    RecordWriter record = writer.set_record(expanded ? 4 : 3);
    record.field(0, "dtype").set_text(dtype);
    record.field(1, "shape").set_ints(shape);
    rpc::Codec<rpc::Buffer>::encode(record.field(2, "data"), rpc::Buffer::copy(data));
    if (expanded) record.field(3, "expanded").set_ints(*expanded);
  }
  std::string wire() const { return rpc::render(test::with_argument(*this)->argument(0)); }
};

TEST(JsonTensor, IsSentAsItsRecord) {
  const Record floats{"float32", {2, 2}, bytes_of({1.0F, 2.5F, -3.0F, 0.1F})};
  const std::string json = R"({"dtype": "float32", "shape": [2, 2], "data": [[1.0, 2.5], [-3.0, 0.1]]})";
  EXPECT_EQ(wire("tensor", json), floats.wire());
  EXPECT_EQ(printed_of(floats), json);  // also without the type
  EXPECT_EQ(printed_of(floats, "tensor"), json);
  // The same tensor in other forms.
  EXPECT_EQ(wire("tensor", R"({"shape": [2, 2], "data": [1, 2.5, -3, 0.1]})"), floats.wire());
  EXPECT_EQ(wire("tensor", R"({"data": [[1, 2.5], [-3, 0.1]]})"), floats.wire());
  EXPECT_EQ(wire("tensor", "[[1, 2.5], [-3, 0.1]]"), floats.wire());
  EXPECT_EQ(wire("tensor",
                 R"({"dtype": "float32", "shape": [2, 2], "data": {"base64": "AACAPwAAIEAAAEDAzczMPQ=="}})"),
            floats.wire());
}

TEST(JsonTensor, OfPlainListsHasTheTypeOfItsNumbers) {
  EXPECT_EQ(wire("tensor", "[1, 2]"), (Record{"int64", {2}, bytes_of<std::int64_t>({1, 2})}.wire()));
  EXPECT_EQ(wire("tensor", "[true]"), (Record{"bool", {1}, bytes_of<bool>({true})}.wire()));
  EXPECT_EQ(wire("tensor", "[1, 2.0]"), (Record{"float32", {2}, bytes_of({1.0F, 2.0F})}.wire()));
  EXPECT_EQ(wire("tensor", "[\"NaN\", 1]"),
            wire("tensor", R"({"dtype": "float32", "shape": [2], "data": ["NaN", 1]})"));
  EXPECT_EQ(wire("tensor", "[]"), (Record{"float32", {0}, {}}.wire()));
  EXPECT_EQ(wire("tensor", "[[], []]"), (Record{"float32", {2, 0}, {}}.wire()));
  EXPECT_EQ(wire("tensor", "5"), (Record{"int64", {}, bytes_of<std::int64_t>({5})}.wire()));
  EXPECT_EQ(wire("tensor", "null"), "nil");
  EXPECT_EQ(again("tensor", "null"), "null");
}

TEST(JsonTensor, OfEveryTypeIsPrintedAsGiven) {
  for (const char* json : {
           R"({"dtype": "bool", "shape": [2], "data": [true, false]})",
           R"({"dtype": "uint8", "shape": [2], "data": [0, 255]})",
           R"({"dtype": "uint16", "shape": [2], "data": [0, 65535]})",
           R"({"dtype": "uint32", "shape": [1], "data": [4294967295]})",
           R"({"dtype": "uint64", "shape": [1], "data": [18446744073709551615]})",
           R"({"dtype": "int8", "shape": [2], "data": [-128, 127]})",
           R"({"dtype": "int16", "shape": [2], "data": [-32768, 32767]})",
           R"({"dtype": "int32", "shape": [2], "data": [-2147483648, 2147483647]})",
           R"({"dtype": "int64", "shape": [1], "data": [-9223372036854775808]})",
           R"({"dtype": "float16", "shape": [4], "data": [0.1, 65504.0, 6e-08, -0.0]})",
           R"({"dtype": "bfloat16", "shape": [3], "data": [0.1, 1e+38, "NaN"]})",
           R"({"dtype": "float32", "shape": [2], "data": [0.1, 1e-45]})",
           R"({"dtype": "float64", "shape": [2], "data": [0.1, 5e-324]})",
           R"({"dtype": "complex32", "shape": [1], "data": [[0.1, -2.0]]})",
           R"({"dtype": "complex64", "shape": [2], "data": [[0.1, -2.0], [0.0, "Infinity"]]})",
           R"({"dtype": "complex128", "shape": [], "data": [0.1, -2.0]})",
           R"({"dtype": "float8_e5m2", "shape": [3], "data": [0.09375, 57344.0, "-Infinity"]})",
           R"({"dtype": "float8_e4m3fn", "shape": [3], "data": [0.1015625, 448.0, "NaN"]})",
           R"({"dtype": "float8_e5m2fnuz", "shape": [2], "data": [0.09375, 57344.0]})",
           R"({"dtype": "float8_e4m3fnuz", "shape": [2], "data": [0.1015625, 240.0]})",
           R"({"dtype": "float32", "shape": [], "data": 3.0})",
           R"({"dtype": "float32", "shape": [0, 1000000], "data": []})",
           R"({"dtype": "int64", "shape": [1, 2, 1], "data": [[[1], [2]]]})",
           R"({"dtype": "int64", "shape": [3, 1000000000], "expanded": [1], "data": [[1], [2], [3]]})",
       })
    EXPECT_EQ(GivenJson::parse(again("tensor", json)), GivenJson::parse(json)) << again("tensor", json);
}

TEST(JsonTensor, SparseTensorsAreSentAndPrinted) {
  for (
      const char* json :
      {R"({"dtype": "float32", "shape": [3, 3], "layout": "coo", "indices": {"dtype": "int64", "shape": [2, 1], "data": [[0], [2]]}, "values": {"dtype": "float32", "shape": [1], "data": [5.0]}, "coalesced": true})",
       R"({"dtype": "float32", "shape": [2, 3], "layout": "csr", "crow": {"dtype": "int64", "shape": [3], "data": [0, 1, 1]}, "columns": {"dtype": "int64", "shape": [1], "data": [2]}, "values": {"dtype": "float32", "shape": [1], "data": [5.0]}})"}) {
    EXPECT_EQ(again("tensor", json), json);
    EXPECT_EQ(again("[tensor]", "[" + std::string(json) + "]"), "[" + std::string(json) + "]");
  }
  EXPECT_EQ(refusal("tensor", R"({"dtype": "float32", "shape": [1], "layout": "csc"})"),
            "expected \"coo\" or \"csr\" as layout, found \"csc\"");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "float32", "shape": [1], "layout": "coo", "indices": [[0]]})"),
            "a tensor without values");
}

TEST(JsonTensor, WithManyElementsIsElided) {
  const Record ten{"uint8", {2, 5}, std::vector<std::byte>(10, std::byte{7})};
  EXPECT_EQ(printed_of(ten, "tensor", 3),
            R"({"dtype": "uint8", "shape": [2, 5], "data": [7, 7, 7], "elided": 7})");
  EXPECT_EQ(printed_of(ten, "tensor", 10),
            R"({"dtype": "uint8", "shape": [2, 5], "data": [[7, 7, 7, 7, 7], [7, 7, 7, 7, 7]]})");
  EXPECT_EQ(refusal("tensor", printed_of(ten, "tensor", 3)),
            "some elements of this tensor were elided, expected all: print it with --max 0");
  const Record large{"uint8", {5000}, std::vector<std::byte>(5000, std::byte{7})};  // an attachment
  EXPECT_EQ(printed_of(large, "", 2),
            R"({"dtype": "uint8", "shape": [5000], "data": [7, 7], "elided": 4998})");
}

TEST(JsonTensor, ReportsErrors) {
  EXPECT_EQ(
      refusal("[tensor]", "[[1], \"x\"]"),
      "[1]: expected a tensor: lists of numbers, or {\"dtype\": …, \"shape\": …, \"data\": …}, found \"x\"");
  EXPECT_EQ(refusal("tensor", "[[1], 2]"), "lists of different depth, expected a tensor");
  EXPECT_EQ(refusal("tensor", "[1, [2]]"), "lists of different depth, expected a tensor");
  EXPECT_EQ(refusal("tensor", "[[1, 2], [3]]"), "lists of 2 and of 1 elements, expected equal lengths");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "int8", "data": [1, 128]})"), "expected int8, found 128");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "int8", "data": [1.5]})"), "expected int8, found 1.5");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "bool", "data": [1]})"), "expected bool, found 1");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "float16", "data": [70000]})"),
            "expected float16, which holds less, found 70000.0");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "float8_e4m3fn", "data": ["Infinity"]})"),
            "expected float8_e4m3fn, which holds less, found null");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "quint8", "data": [1]})"), "unknown dtype \"quint8\"");
  EXPECT_EQ(refusal("tensor", R"({"shape": [3], "data": [1, 2]})"),
            "a tensor of shape [3] has 3 elements, not 2");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "complex64", "shape": [3], "data": [1, 2]})"),
            "a tensor of shape [3] has 6 numbers (two an element), not 2");
  EXPECT_EQ(refusal("tensor", R"({"dtype": "complex64", "data": [1, 2, 3]})"),
            "an element of a complex tensor is [re, im]");
  EXPECT_EQ(refusal("tensor", R"({"shape": [-1], "data": []})"), "expected shape, found -1");
  EXPECT_EQ(refusal("tensor", R"({"shape": [4294967296, 4294967296], "data": []})"),
            "a tensor of shape [4294967296, 4294967296] is too large");
  EXPECT_EQ(refusal("tensor", R"({"shape": [4294967296, 4294967296], "expanded": [0, 1], "data": [1]})"),
            "a tensor of shape [4294967296, 4294967296] is too large");
  EXPECT_EQ(refusal("tensor", R"({"shape": [1], "expanded": [1], "data": [1]})"),
            "expanded along a dimension that does not exist");
  EXPECT_EQ(refusal("tensor", R"({"shape": [1], "data": {"base64": "AA=="}})"),
            "a float32 tensor of shape [1] has 4 bytes, not 1");
  EXPECT_EQ(refusal("tensor", R"({"data": {"base64": "AA=="}})"), "a tensor of bytes without shape");
  EXPECT_EQ(refusal("tensor", R"({"dtype": 3, "data": []})"), "expected a text as dtype");
  EXPECT_EQ(refusal("tensor", R"({"shape": [1]})"), "a tensor without data");
  EXPECT_EQ(refusal("tensor", R"({"values": [1], "x": 2})"),
            "a tensor has no \"x\": it is {\"dtype\": …, \"shape\": …, \"data\": …}");
}

// A malformed tensor is printed as a plain record.
TEST(JsonTensor, MalformedTensorsArePrintedAsRecords) {
  const auto is_record = [](const Record& record) {
    return printed_of(record, "tensor").find("base64") != std::string::npos;
  };
  EXPECT_FALSE(is_record({"uint8", {1}, std::vector<std::byte>(1)}));
  EXPECT_TRUE(is_record({"uint8", {2}, std::vector<std::byte>(1)}));
  EXPECT_TRUE(is_record({"quint8", {1}, std::vector<std::byte>(1)}));
  EXPECT_TRUE(is_record({"uint8", {-1}, std::vector<std::byte>(1)}));
  EXPECT_TRUE(is_record({"uint8", {-1, -1}, std::vector<std::byte>(1)}));
  EXPECT_TRUE(
      is_record({"uint8", {std::int64_t{1} << 32, std::int64_t{1} << 32}, std::vector<std::byte>(1)}));
  EXPECT_TRUE(is_record({"uint8", {0, std::int64_t{1} << 62, 8}, {}}));
  EXPECT_TRUE(is_record({"uint8", std::vector<std::int64_t>(65, 1), std::vector<std::byte>(1)}));
  EXPECT_TRUE(is_record({"uint8", {4}, std::vector<std::byte>(1), std::vector<std::int64_t>{1}}));
  EXPECT_TRUE(is_record({"uint8", {4}, std::vector<std::byte>(1), std::vector<std::int64_t>{-1}}));
  EXPECT_TRUE(is_record({"uint8", {4}, std::vector<std::byte>(1), std::vector<std::int64_t>{0, 0}}));
  EXPECT_FALSE(is_record({"uint8", {4}, std::vector<std::byte>(1), std::vector<std::int64_t>{0}}));
  EXPECT_FALSE(is_record({"uint8", std::vector<std::int64_t>(64, 1), std::vector<std::byte>(1)}));
  // A sparse tensor in a sparse tensor. No agent sends this.
  const auto coo = [](auto&& self, ValueWriter writer, int depth) -> void {
    RecordWriter record = writer.set_record(5);
    record.field(0, "dtype").set_text("uint8");
    record.field(1, "shape").set_ints({});
    record.field(2, "layout").set_text("coo");
    record.field(3, "indices").set_nil();
    if (depth == 0) return record.field(4, "values").set_nil();
    self(self, record.field(4, "values"), depth - 1);
  };
  EXPECT_EQ(printed_of([&](ValueWriter writer) { coo(coo, writer, 2); }, "tensor").find("elided"),
            std::string::npos);
  // The record has a dtype, but no other field of a tensor.
  EXPECT_EQ(printed_of([](ValueWriter writer) { writer.set_record(1).field(0, "dtype").set_text("uint8"); }),
            "{\"dtype\": \"uint8\"}");
}

// A record of few bytes may have any shape.
TEST(JsonTensor, ShapesLargerThanTheBytesArePrinted) {
  const Record expanded{
      "uint8", {1 << 30, 1 << 30}, std::vector<std::byte>(1), std::vector<std::int64_t>{0, 1}};
  EXPECT_EQ(printed_of(expanded),
            R"({"dtype": "uint8", "shape": [1073741824, 1073741824], "expanded": [0, 1], "data": [[0]]})");
  const Record empty{"uint8", {1 << 30, 0}, {}};
  EXPECT_EQ(printed_of(empty), R"({"dtype": "uint8", "shape": [1073741824, 0], "data": []})");
}

}  // namespace
}  // namespace weft::tool::json_tensor_test

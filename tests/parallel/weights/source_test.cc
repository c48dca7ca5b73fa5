// Sources of safetensors: files of Python's package are read bit by bit, slices of them also. Bad files are
// refused.
#include <weft/parallel/weights/source.h>

#include <weft/parallel/weights/internal/dtypes.h>

#include <unistd.h>

#include <ATen/ops/arange.h>

#include "tests/parallel/weights/files.h"

namespace weft::weights::source_test {
namespace {

using namespace test_files;

class Sources : public Files {};

TEST_F(Sources, HaveEveryTypeOfSafetensors) {
  const auto source = open_source(recorded("types.safetensors"));
  EXPECT_EQ(source->notes().at("epoch"), "3");
  std::size_t count = 0;
  for (const at::ScalarType type : every_type) {
    if (!is_of_safetensors(type)) continue;
    ++count;
    expect_same(source->view(name_of(type)), known(type, {2, 3}), name_of(type));
    const at::Tensor to = at::empty({2, 3}, at::TensorOptions(type));
    source->read(name_of(type), to);
    expect_same(to, known(type, {2, 3}), name_of(type));
  }
  expect_same(source->view("scalar"), known(at::kFloat, {}), "0-dim");
  expect_same(source->view("empty"), known(at::kLong, {0, 3}), "empty");
  EXPECT_EQ(source->tensors().size(), count + 2);
}

TEST_F(Sources, ReadShardsOfAFolder) {
  for (const auto& path : {recorded("shards"), recorded("shards/model.safetensors.index.json")}) {
    const auto source = open_source(path);
    ASSERT_EQ(source->tensors().size(), 2U);
    expect_same(source->view("a"), known(at::kFloat, {4, 2}), "a");
    expect_same(source->view("b.c"), known(at::kByte, {3}), "b.c");
  }
}

TEST_F(Sources, ReadSlices) {
  const auto source = open_source(recorded("shards"));
  const at::Tensor a = known(at::kFloat, {4, 2});
  const auto read = [&](const Slice& slice, std::vector<std::int64_t> sizes) {
    const at::Tensor to = at::empty(sizes);
    source->read("a", to, slice);
    return to;
  };
  expect_same(read(Slice::rows(1, 3), {2, 2}), a.narrow(0, 1, 2), "rows");
  expect_same(read({{{1, 1, 2}}}, {4, 1}), a.narrow(1, 1, 1), "columns");
  expect_same(read({{{0, 2, 4}, {1, 0, 1}}}, {2, 1}), a.narrow(0, 2, 2).narrow(1, 0, 1), "both");
  expect_same(read(Slice::flat(3, 6), {3}), a.view({-1}).narrow(0, 3, 3), "flat");
  expect_same(read(Slice::rows(2, 2), {0, 2}), a.narrow(0, 2, 0), "none");
  // Into a tensor that is not contiguous, and into another dtype.
  const at::Tensor wide = at::zeros({4, 4}), columns = wide.narrow(1, 1, 2);
  source->read("a", columns);
  expect_same(columns, a, "columns of a larger tensor");
  const at::Tensor doubles = at::empty({4, 2}, at::kDouble);
  source->read("a", doubles, {}, true);
  expect_same(doubles, a.to(at::kDouble), "converted");

  const auto refused = [&](const at::Tensor& to, const Slice& slice) {
    return weft::test::kind_of([&] { return source->read("a", to, slice), 0; });
  };
  using rpc::ErrorKind;
  EXPECT_EQ(refused(at::empty({1, 2}), Slice::rows(4, 5)), ErrorKind::invalid_argument);
  EXPECT_EQ(refused(at::empty({1, 2}), Slice::rows(-1, 0)), ErrorKind::invalid_argument);
  EXPECT_EQ(refused(at::empty({1, 2}), {{{2, 0, 1}}}), ErrorKind::invalid_argument);
  EXPECT_EQ(refused(at::empty({2, 2}), {}), ErrorKind::invalid_argument) << "another shape";
  EXPECT_EQ(refused(doubles, {}), ErrorKind::invalid_argument) << "another dtype";
  EXPECT_EQ(weft::test::kind_of([&] { return source->view("none"), 0; }), ErrorKind::not_found);
}

TEST_F(Sources, AViewIsPrivateAndKeepsTheFile) {
  std::filesystem::copy(recorded("types.safetensors"), path("file"));
  at::Tensor view = open_source(path("file"))->view("int64");
  view.zero_();
  expect_same(open_source(path("file"))->view("int64"), known(at::kLong, {2, 3}), "the file");
  std::filesystem::remove(path("file"));
  EXPECT_EQ(view.sum().item<std::int64_t>(), 0);
}

TEST_F(Sources, FillALazyConjugate) {
  const at::Tensor values = known(at::kComplexFloat, {2, 3}), to = at::empty_like(values).conj();
  open_source(recorded("types.safetensors"))->read("complex64", to);
  expect_same(to.resolve_conj(), values, "complex64");
}

TEST_F(Sources, TellAutogradOfNewValues) {
  at::Tensor to = at::zeros({4, 2});
  const auto before = to._version();
  open_source(recorded("shards"))->read("a", to);
  EXPECT_GT(to._version(), before);
}

// Other writers may put elements at any byte.
TEST_F(Sources, ReadElementsThatAreNotAligned) {
  const at::Tensor values = at::arange(6, at::kDouble).view({2, 3});
  const auto file = put("file", with_header(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                            R"("d":{"dtype":"F64","shape":[2,3],"data_offsets":[1,49]}})",
                                            "x" + bytes_of(values)));
  const auto source = open_source(file);
  expect_same(source->view("d"), values, "d");
  const at::Tensor to = at::empty({2, 2}, at::kDouble);
  source->read("d", to, {{{1, 1, 3}}});
  expect_same(to, values.narrow(1, 1, 2), "columns");
  const at::Tensor row = at::empty({1, 3}, at::kDouble);
  source->read("d", row, Slice::rows(1, 2));
  expect_same(row, values.narrow(0, 1, 1), "row");
}

TEST_F(Sources, ReadBeyond4GiB) {
  constexpr std::uint64_t size = (std::uint64_t{5} << 30) + 16;
  const auto file = put("file", with_header(R"({"a":{"dtype":"U8","shape":[)" + std::to_string(size) +
                                            R"(],"data_offsets":[0,)" + std::to_string(size) + "]}}"));
  const std::uint64_t header = std::filesystem::file_size(file);
  std::filesystem::resize_file(file, header + size);  // without blocks on the disk
  {
    std::fstream out(file, std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(static_cast<std::streamoff>(header + size - 3));
    out << "end";
  }
  const at::Tensor to = at::empty({4}, at::kByte);
  open_source(file)->read("a", to,
                          Slice::flat(static_cast<std::int64_t>(size) - 4, static_cast<std::int64_t>(size)));
  EXPECT_EQ(bytes_of(to), std::string("\0end", 4));
}

TEST_F(Sources, RefuseDamagedSafetensors) {
  const auto refuse = [&](const std::string& bytes, const std::string& what) {
    expect_refused(put("file", bytes), what);
  };
  const auto one = [&](const std::string& dtype, const std::string& shape, const std::string& offsets) {
    return R"("t":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
  };
  refuse("", "it ends too soon");
  refuse("1234567", "it ends too soon");
  refuse(std::string(7, '\0') + "\x80", "a header of 9223372036854775808 bytes");
  refuse(std::string(8, '\xff'), "a header of 18446744073709551615 bytes");
  refuse(std::string("\x05\0\0\0\0\0\0\0{}", 10), "a header of 5 bytes, expected at most 2");
  refuse(with_header("[]"), "not JSON");
  refuse(with_header("{"), "not JSON");
  refuse(with_header("{" + one("F32", "[2]", "[0,8]") + "}"), "outside of the 0 bytes");
  refuse(with_header("{" + one("F32", "[2]", "[8,0]") + "}", std::string(8, 'x')), "outside of the 8 bytes");
  refuse(with_header("{" + one("F32", "[2]", "[-8,8]") + "}", std::string(8, 'x')), "expected whole numbers");
  refuse(with_header("{" + one("F32", "[-2]", "[0,8]") + "}", std::string(8, 'x')), "expected whole numbers");
  refuse(with_header("{" + one("F32", "[2.0]", "[0,8]") + "}", std::string(8, 'x')),
         "expected whole numbers");
  refuse(with_header("{" + one("F32", "[3]", "[0,8]") + "}", std::string(8, 'x')),
         "3 elements of 4 bytes, but 8 bytes");
  refuse(
      with_header("{" + one("F32", "[4294967296,4294967296,4294967296]", "[0,8]") + "}", std::string(8, 'x')),
      "larger than any tensor");
  refuse(with_header("{" + one("F32", "[0,9223372036854775807,9]", "[0,0]") + "}"), "larger than any tensor");
  expect_refused(put("file", with_header("{" + one("F99", "[2]", "[0,8]") + "}", std::string(8, 'x'))),
                 "of type F99", rpc::ErrorKind::unsupported);
  refuse(with_header("{" + one("F4", "[3]", "[0,1]") + "}", "x"), "an even last extent");
  refuse(with_header("{" + one("F32", "[2]", "[0,8]") + "}", std::string(9, 'x')), "longer than its tensors");
  refuse(with_header(
             "{" + one("U8", "[2]", "[0,2]") + R"(,"u":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
             "xyz"),
         "overlap or have gaps");
  refuse(with_header(
             "{" + one("U8", "[1]", "[0,1]") + R"(,"u":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}})",
             "xyz"),
         "overlap or have gaps");
  refuse(with_header("{" + one("U8", "[1]", "[0,1]") + "," + one("U8", "[1]", "[0,1]") + "}", "x"),
         "'t' twice");
  refuse(with_header(R"({"t":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}})", "x"),
         "'dtype' twice");
  refuse(with_header(R"({"__metadata__":{"a":1}})"), "not of this format");
  refuse(with_header(R"({"t":1})"), "not of this format");
  refuse(with_header(R"({"t":)" + std::string(1'000'000, '[')), "nested more than 8 deep");
  expect_refused(put("legacy", std::string("\x80\2\x8a\nl\xfc\x9c") + "F\xf9 j\xa8P\x19.\x80\2M\xe9\3."),
                 "is not a zip file", rpc::ErrorKind::unsupported);
  expect_refused(path("none"), "cannot be opened");
  std::filesystem::create_directory(path("folder"));
  expect_refused(path("folder"), "has neither model.safetensors nor");
}

// A tied tensor of one shard is not that of another one, which has the same name there.
TEST_F(Sources, KeepTiedTensorsOfShardsApart) {
  const auto shard = [](const std::string& tied, char value) {
    return with_header(
        R"({"__metadata__":{")" + tied + R"(":"w"},"w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
        std::string(1, value));
  };
  put("1.safetensors", shard("a", 'x'));
  put("2.safetensors", shard("b", 'y'));
  const auto source =
      open_source(put("index.json", R"({"weight_map":{"a":"1.safetensors","b":"2.safetensors"}})"));
  EXPECT_EQ(bytes_of(source->view("a")), "x");
  EXPECT_EQ(bytes_of(source->view("b")), "y");
  EXPECT_FALSE(source->form("a").is_same_as(source->form("b")));
}

TEST_F(Sources, RefuseDamagedIndexes) {
  std::filesystem::copy(recorded("shards"), path("shards"));
  const auto refuse = [&](const std::string& index, const std::string& what) {
    std::ofstream(path("shards/model.safetensors.index.json")) << index;
    expect_refused(path("shards/model.safetensors.index.json"), what);
  };
  refuse("{}", "not an index of shards");
  refuse("", "not JSON");
  refuse(R"({"weight_map":{"a":"../secret"}})", "is not in the folder");
  refuse(R"({"weight_map":{"a":"/etc/passwd"}})", "is not in the folder");
  refuse(R"({"weight_map":{"a":".."}})", "is not in the folder");
  refuse(R"({"weight_map":{"a":"model-00002-of-00002.safetensors"}})", "which lacks it");
}

}  // namespace
}  // namespace weft::weights::source_test

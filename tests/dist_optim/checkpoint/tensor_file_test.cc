// Tensor files: the reader returns what was written, also for files of other programs. Damaged files are
// refused.
#include <weft/dist_optim/checkpoint/tensor_file.h>
#include <weft/parallel/weights/checked_file.h>
#include <weft/rpc/core/error.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <sstream>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/dist_optim/refusal.h"

namespace weft::dist_optim::checkpoint_tensor_file_test {
namespace {

class TensorFiles : public testing::Test {
 protected:
  TensorFiles() {
    std::string name = (std::filesystem::temp_directory_path() / "weft-tensors-XXXXXX").string();
    folder = ::mkdtemp(name.data());
  }
  ~TensorFiles() override { std::filesystem::remove_all(folder); }

  std::filesystem::path folder;
  std::filesystem::path path() const { return folder / "file"; }

  std::string bytes() const {
    std::ostringstream all;
    all << std::ifstream(path(), std::ios::binary).rdbuf();
    return all.str();
  }
  void put(const std::string& bytes) const { std::ofstream(path(), std::ios::binary) << bytes; }
  // Writes a file as another program would.
  void put(const std::string& header, const std::string& elements) const {
    const std::uint64_t length = header.size();
    put(std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + elements);
  }
  void expect_damaged(const std::string& what) const {
    const std::string text =
        refusal(rpc::ErrorKind::failed_precondition, [&] { read_tensor_file(path()); }, what);
    EXPECT_NE(text.find(path().string()), std::string::npos) << text;
  }
};

TEST_F(TensorFiles, HoldEveryTypeAndShape) {
  TensorFile file{{}, {{"step", "7"}, {"text", "\"weft.crc32c\":\"beef\n"}, {"", ""}}, false};
  for (const auto type : {at::kComplexDouble,
                          at::kComplexFloat,
                          at::kComplexHalf,
                          at::kDouble,
                          at::kFloat,
                          at::kHalf,
                          at::kBFloat16,
                          at::kFloat8_e4m3fn,
                          at::kFloat8_e5m2,
                          at::kFloat8_e4m3fnuz,
                          at::kFloat8_e5m2fnuz,
                          at::kLong,
                          at::kInt,
                          at::kShort,
                          at::kChar,
                          at::kUInt64,
                          at::kUInt32,
                          at::kUInt16,
                          at::kByte,
                          at::kBool})
    file.tensors[std::string("of ") + c10::toString(type)] = (at::arange(6) % 5).to(type).reshape({2, 3});
  file.tensors["scalar"] = at::scalar_tensor(3.5);
  file.tensors["empty"] = at::empty({2, 0, 3});
  file.tensors["transposed"] = at::arange(6).reshape({2, 3}).t();
  file.tensors["of a graph"] = at::ones({2}).requires_grad_();
  write_tensor_file(path(), file);
  const TensorFile read = read_tensor_file(path());
  EXPECT_TRUE(read.proven);
  EXPECT_EQ(read.notes, file.notes);
  ASSERT_EQ(read.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    ASSERT_TRUE(read.tensors.contains(name)) << name;
    const at::Tensor& other = read.tensors.at(name);
    EXPECT_EQ(other.scalar_type(), tensor.scalar_type()) << name;
    EXPECT_EQ(other.sizes(), tensor.sizes()) << name;
    const at::Tensor expected = tensor.detach().contiguous();
    if (expected.numel() != 0) {
      EXPECT_EQ(std::memcmp(other.const_data_ptr(), expected.const_data_ptr(), expected.nbytes()), 0) << name;
    }
    EXPECT_FALSE(other.requires_grad()) << name;
  }
}

TEST_F(TensorFiles, AreSafetensors) {
  write_tensor_file(path(),
                    {{{"b", at::tensor({1.5F, -2.0F})}, {"a", at::tensor({7}, at::kByte)}}, {}, false});
  const std::string all = bytes();
  std::uint64_t length = 0;
  std::memcpy(&length, all.data(), sizeof length);
  EXPECT_EQ(length % 8, 0U);
  ASSERT_EQ(all.size(), 8 + length + 9);
  const std::string header = all.substr(8, length);
  EXPECT_NE(header.find(R"("a":{"data_offsets":[0,1],"dtype":"U8","shape":[1]})"), std::string::npos)
      << header;
  EXPECT_NE(header.find(R"("b":{"data_offsets":[1,9],"dtype":"F32","shape":[2]})"), std::string::npos)
      << header;
  float values[2];
  std::memcpy(values, all.data() + 8 + length + 1, sizeof values);
  EXPECT_EQ(values[0], 1.5F);
  EXPECT_EQ(values[1], -2.0F);
}

TEST_F(TensorFiles, OfOtherProgramsAreRead) {
  put(R"({"x": {"dtype": "I16", "shape": [2, 1], "data_offsets": [2, 6]},
          "first": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]}, "__metadata__": {"from": "elsewhere"}})",
      std::string("\x01\x02\x03\x00\xff\xff", 6));
  const TensorFile file = read_tensor_file(path());
  EXPECT_FALSE(file.proven);
  EXPECT_EQ(file.notes, (std::map<std::string, std::string>{{"from", "elsewhere"}}));
  EXPECT_TRUE(at::equal(file.tensors.at("x"), at::tensor({3, -1}, at::kShort).reshape({2, 1})));
  EXPECT_TRUE(at::equal(file.tensors.at("first"), at::tensor({1, 2}, at::kByte)));
}

TEST_F(TensorFiles, RefuseWhatTheFormatCannotHold) {
  const auto write = [&](const at::Tensor& tensor) {
    return refusal(rpc::ErrorKind::invalid_argument,
                   [&] { write_tensor_file(path(), {{{"it", tensor}}, {}, false}); });
  };
  for (const at::Tensor& tensor :
       {at::empty({2}, at::ScalarType::Bits8), at::eye(2).to_sparse(), at::Tensor()}) {
    EXPECT_NE(write(tensor).find("'it'"), std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(path()));
  }
  refusal(rpc::ErrorKind::invalid_argument,
          [&] { write_tensor_file(path(), {{{"__metadata__", at::ones({1})}}, {}, false}); });
  refusal(rpc::ErrorKind::invalid_argument,
          [&] { write_tensor_file(path(), {{}, {{"not UTF-8", "\xff"}}, false}); });
}

TEST_F(TensorFiles, WithDamageAtAnyByteAreRefused) {
  write_tensor_file(
      path(), {{{"weight", at::arange(5, at::kFloat)}, {"bias", at::ones({2})}}, {{"step", "3"}}, false});
  const std::string whole = bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    put(whole.substr(0, length));
    refusal(rpc::ErrorKind::failed_precondition, [&] { read_tensor_file(path()); });
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const int bit : {0, 3, 5, 7}) {
      std::string flipped = whole;
      flipped[at] = static_cast<char>(flipped[at] ^ (1 << bit));
      put(flipped);
      if (flipped.find("\"weft.crc32c\":\"") == std::string::npos &&
          whole.compare(0, 8, flipped, 0, 8) == 0) {
        // Without this name, the file equals a file of another program, which has no checksums.
        try {
          EXPECT_FALSE(read_tensor_file(path()).proven);
        } catch (const rpc::Error&) {
        }
      } else {
        refusal(rpc::ErrorKind::failed_precondition, [&] { read_tensor_file(path()); });
      }
      if (HasFailure()) FAIL() << "byte " << at << " bit " << bit;
    }
  }
  put(whole + "x");
  expect_damaged("longer than its tensors");
}

// Elements in several blocks of checksums, at odd offsets.
TensorFile of_blocks() {
  return {{{"a", at::arange(3, at::kByte)},
           {"b", at::arange(700'000, at::kInt)},  // 2.7 MiB
           {"c", at::arange(10, at::kDouble)},
           {"d", at::arange(300'000, at::kFloat)},
           {"empty", at::empty({0, 2})},
           {"scalar", at::scalar_tensor(2.5)}},
          {{"step", "3"}},
          false};
}

TEST_F(TensorFiles, RangesOfElementsAreRead) {
  const TensorFile file = of_blocks();
  write_tensor_file(path(), file);
  TensorFileReader reader(path());
  EXPECT_TRUE(reader.proven());
  EXPECT_EQ(reader.notes(), file.notes);
  ASSERT_EQ(reader.tensors().size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    SCOPED_TRACE(name);
    EXPECT_EQ(reader.tensors().at(name).dtype, tensor.scalar_type());
    EXPECT_EQ(reader.tensors().at(name).sizes, tensor.sizes().vec());
    const std::int64_t n = tensor.numel();
    for (const std::int64_t begin : {std::int64_t{0}, n / 3, n - 1, n})
      for (const std::int64_t end : {begin, begin + 1, n / 2, n}) {
        if (begin < 0 || end < begin || end > n) continue;
        const at::Tensor read = at::zeros({end - begin}, tensor.options());
        reader.read(name, begin, read);
        EXPECT_TRUE(at::equal(read, tensor.reshape({-1}).slice(0, begin, end))) << begin << " to " << end;
      }
  }
  const at::Tensor spread = at::zeros({100, 2}, at::kInt).select(1, 1);  // every other element
  reader.read("b", 262'100, spread);
  EXPECT_TRUE(at::equal(spread, at::arange(262'100, 262'200, at::kInt)));
  refusal(rpc::ErrorKind::invalid_argument, [&] { reader.read("c", 5, at::zeros({6}, at::kDouble)); });
  refusal(rpc::ErrorKind::invalid_argument, [&] { reader.read("c", -1, at::zeros({2}, at::kDouble)); });
  refusal(rpc::ErrorKind::invalid_argument, [&] { reader.read("c", 0, at::zeros({2}, at::kFloat)); });
  EXPECT_THROW(reader.read("none", 0, at::zeros({2})), std::out_of_range);
}

// The reader does not read the other blocks.
TEST_F(TensorFiles, ADamagedBlockIsFoundByItsReader) {
  write_tensor_file(path(), of_blocks());
  std::string all = bytes();
  std::uint64_t length = 0;
  std::memcpy(&length, all.data(), sizeof length);
  all[8 + length + 3 + 1'500'000] ^= 4;  // in the second MiB
  put(all);
  TensorFileReader reader(path());
  reader.read("b", 0, at::zeros({200'000}, at::kInt));
  reader.read("b", 600'000, at::zeros({100'000}, at::kInt));
  reader.read("d", 0, at::zeros({300'000}));
  for (const std::int64_t begin : {270'000, 375'000, 400'000, 300'000})
    refusal(
        rpc::ErrorKind::failed_precondition, [&] { reader.read("b", begin, at::zeros({10'000}, at::kInt)); },
        path().string() + ": is damaged: the checksum of MiB 1");
  expect_damaged("MiB 1");
}

TEST_F(TensorFiles, AreWrittenTensorByTensor) {
  const TensorFile file = of_blocks();
  const std::uint32_t crc = write_tensor_file(path(), file);
  const std::string all = bytes();
  std::map<std::string, TensorForm> forms;
  for (const auto& [name, tensor] : file.tensors)
    forms.emplace(name, TensorForm{tensor.scalar_type(), tensor.sizes().vec()});
  std::weak_ptr<int> before;
  const auto values = [&](const std::string& name) {
    EXPECT_TRUE(before.expired()) << "the tensor before " << name << " is still held";
    const auto held = std::make_shared<int>(0);
    before = held;
    const at::Tensor copy = file.tensors.at(name).clone();
    return at::from_blob(copy.mutable_data_ptr(), copy.sizes(), [copy, held](void*) {}, copy.options());
  };
  EXPECT_EQ(write_tensor_file(path(), forms, file.notes, values), crc);
  EXPECT_EQ(TensorFileReader(path()).crc(), crc);
  EXPECT_TRUE(bytes() == all);
  forms.at("c").sizes = {5, 3};
  refusal(rpc::ErrorKind::invalid_argument, [&] { write_tensor_file(path(), forms, file.notes, values); });
  EXPECT_TRUE(bytes() == all) << "the file before stays";
  TensorFile other = of_blocks();
  other.tensors.at("d").mul_(2);
  EXPECT_NE(write_tensor_file(path(), other), crc);
}

TEST_F(TensorFiles, WithAFalseHeaderAreRefused) {
  put(std::string("\xff\xff\xff\xff\xff\xff\xff\x7f", 8));
  expect_damaged("a header of 9223372036854775807 bytes, expected at most 0");
  put("[1]", "");
  expect_damaged("not JSON");
  put(R"({"x": 3})", "");
  expect_damaged("not of this format");
  put(R"({"x": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}})", "1234");
  expect_damaged("F31");
  const auto of = [](const std::string& shape, const std::string& offsets) {
    return R"({"x": {"dtype": "F32", "shape": )" + shape + R"(, "data_offsets": )" + offsets + "}}";
  };
  put(of("[1]", "[0, 8]"), "1234");
  expect_damaged("outside");
  put(of("[1]", "[4, 0]"), "1234");
  expect_damaged("outside");
  put(of("[1]", "[0]"), "1234");
  expect_damaged("outside");
  put(of("[2]", "[0, 4]"), "1234");
  expect_damaged("2 elements of 4 bytes, but 4 bytes in the file");
  put(of("[-1]", "[0, 4]"), "1234");
  expect_damaged("expected whole numbers");
  put(of("[4611686018427387904, 4611686018427387904]", "[0, 4]"), "1234");
  expect_damaged("any tensor");
  put(of("[0, 4611686018427387904, 4611686018427387904]", "[0, 0]"), "");
  expect_damaged("any tensor");
  put(of("[1]", "[4, 8]"), "12345678");
  expect_damaged("gaps");
}

TEST_F(TensorFiles, AreReplacedAsAWhole) {
  const TensorFile old{{{"x", at::zeros({3})}}, {}, false};
  write_tensor_file(path(), old);
  // Another writer holds the file.
  const std::string part = path().string() + ".part";
  const int other = ::open(part.c_str(), O_WRONLY | O_CREAT, 0644);
  ASSERT_EQ(::flock(other, LOCK_EX), 0);
  refusal(rpc::ErrorKind::failed_precondition,
          [&] { write_tensor_file(path(), {{{"x", at::ones({3})}}, {}, false}); });
  ::close(other);
  // A writer that fails before the end, or that died there.
  refusal(rpc::ErrorKind::internal, [&] {
    weights::write_whole(path(), [](weights::CheckedFile& file) {
      file.write("half", 4);
      throw rpc::Error(rpc::ErrorKind::internal, "no more");
    });
  });
  EXPECT_FALSE(std::filesystem::exists(part));
  std::ofstream(part) << "what a writer left that was killed, and that is longer than what comes next "
                      << std::string(10'000, 'x');
  EXPECT_TRUE(at::equal(read_tensor_file(path()).tensors.at("x"), at::zeros({3})));
  write_tensor_file(path(), {{{"x", at::ones({3})}}, {}, false});
  EXPECT_TRUE(at::equal(read_tensor_file(path()).tensors.at("x"), at::ones({3})));
}

TEST_F(TensorFiles, CreateTheirFolder) {
  write_tensor_file(folder / "a" / "b" / "file", {});
  EXPECT_TRUE(read_tensor_file(folder / "a" / "b" / "file").tensors.empty());
  write_tensor_file(path(), {});
  refusal(rpc::ErrorKind::failed_precondition, [&] { write_tensor_file(path() / "below a file", {}); });
  refusal(rpc::ErrorKind::failed_precondition, [&] { read_tensor_file(folder / "none"); });
  refusal(rpc::ErrorKind::failed_precondition, [&] { read_tensor_file(folder); });
}

// Another writer opens the unfinished file, and locks it only when it has its final name.
TEST_F(TensorFiles, AFilePublishedByAnotherWriterIsNotClaimed) {
  std::optional<weights::CheckedFile> late;
  weights::write_whole(path(), [&](weights::CheckedFile& file) {
    file.write("whole", 5);
    late.emplace(file.path(), O_WRONLY | O_CREAT);
    EXPECT_FALSE(late->claim()) << "it is being written";
  });
  EXPECT_FALSE(late->claim()) << "it is the published file";
  EXPECT_EQ(bytes(), "whole");
  late.emplace(path().string() + ".part", O_WRONLY | O_CREAT);
  EXPECT_TRUE(late->claim());
}

}  // namespace
}  // namespace weft::dist_optim::checkpoint_tensor_file_test

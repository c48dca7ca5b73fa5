// Files for the tests of weights: the folder of recorded ones, a temporary folder, and tensors with known
// bytes.
#pragma once

#include <weft/parallel/weights/source.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <gtest/gtest.h>
#include <torch/types.h>

#include "tests/support/errors.h"
#include "tests/support/torch_python.h"

namespace weft::weights::test_files {

inline std::filesystem::path recorded(const std::string& name) {
  return std::filesystem::path(__FILE__).parent_path() / "data" / name;
}

inline constexpr at::ScalarType every_type[] = {at::kDouble,
                                                at::kFloat,
                                                at::kHalf,
                                                at::kBFloat16,
                                                at::kFloat8_e4m3fn,
                                                at::kFloat8_e5m2,
                                                at::kFloat8_e4m3fnuz,
                                                at::kFloat8_e5m2fnuz,
                                                at::kFloat8_e8m0fnu,
                                                at::kLong,
                                                at::kInt,
                                                at::kShort,
                                                at::kChar,
                                                at::kUInt64,
                                                at::kUInt32,
                                                at::kUInt16,
                                                at::kByte,
                                                at::kBool,
                                                at::kComplexFloat,
                                                at::kComplexDouble,
                                                at::kComplexHalf,
                                                at::kFloat4_e2m1fn_x2};

inline bool is_of_safetensors(at::ScalarType type) {
  return type != at::kComplexDouble && type != at::kComplexHalf;
}

// As make_files.py makes it: its bytes are 3, 10, 17, ... modulo 128, of a bool 0 and 1 in turn.
inline at::Tensor known(at::ScalarType type, const std::vector<std::int64_t>& sizes) {
  at::Tensor tensor = at::empty(sizes, at::TensorOptions(type));
  auto* const bytes = static_cast<std::uint8_t*>(tensor.data_ptr());
  for (std::size_t i = 0; i < tensor.nbytes(); ++i)
    bytes[i] = static_cast<std::uint8_t>(type == at::kBool ? i % 2 : (3 + 7 * i) % 128);
  return tensor;
}

inline std::string bytes_of(const at::Tensor& tensor) {
  const at::Tensor dense = tensor.contiguous();
  return {static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()};
}

inline void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& name) {
  EXPECT_EQ(found.scalar_type(), expected.scalar_type()) << name;
  EXPECT_EQ(found.sizes(), expected.sizes()) << name;
  EXPECT_EQ(bytes_of(found), bytes_of(expected)) << name;
}

class Files : public testing::Test {
 protected:
  std::filesystem::path path(const std::string& name) const { return folder_.path() + "/" + name; }
  std::filesystem::path put(const std::string& name, const std::string& bytes) const {
    std::ofstream(path(name), std::ios::binary) << bytes;
    return path(name);
  }
  static std::string bytes_at(const std::filesystem::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  // A file of safetensors with this header.
  static std::string with_header(const std::string& header, const std::string& elements = "") {
    const std::uint64_t length = header.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + header + elements;
  }

  // The error of opening and reading all of a file, which must name the file.
  void expect_refused(const std::filesystem::path& file, const std::string& what,
                      rpc::ErrorKind kind = rpc::ErrorKind::failed_precondition) const {
    const auto error = weft::test::error_of([&] {
      const auto source = open_source(file);
      for (const auto& [name, form] : source->tensors()) source->view(name);
      return 0;
    });
    ASSERT_TRUE(error) << "no error " << what;
    EXPECT_EQ(error->kind(), kind) << error->what();
    EXPECT_NE(std::string(error->what()).find(what), std::string::npos)
        << error->what() << "\nexpected: " << what;
    EXPECT_NE(std::string(error->what()).find(file.string()), std::string::npos) << error->what();
  }

 private:
  const weft::test::TemporaryFolder folder_;
};

}  // namespace weft::weights::test_files

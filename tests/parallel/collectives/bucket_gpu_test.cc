// The kernels of a bucket against their twin, bit for bit. Skipped without a GPU; they have never run on one:
// docs/gpu.md.
#include <weft/parallel/collectives/bucket/bucket.h>

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

#include "tests/support/gpu_memory.h"

namespace weft::collectives::bucket::testing {
namespace bucket_gpu_test {

using test::GpuMemory;
using Bytes = std::vector<std::byte>;

constexpr Element elements[] = {Element::float16, Element::bfloat16, Element::float32, Element::float64};
std::size_t size_of(Element element) {
  return element == Element::float64 ? 8 : element == Element::float32 ? 4 : 2;
}

// Any bits: numbers of every size, infinities and NaNs.
Bytes noise(std::size_t size) {
  std::mt19937_64 random(size);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// More pieces than one launch takes, one of more than a block, some of none.
std::vector<std::size_t> counts() {
  std::vector<std::size_t> made{1, 0, 70'001, 4096, 4097};
  for (std::size_t i = 0; i < 300; ++i) made.push_back(i * 7 % 131);
  return made;
}
std::vector<Piece> pieces_in(std::byte* memory, Element type) {
  std::vector<Piece> pieces;
  for (const std::size_t count : counts()) {
    pieces.push_back({memory, count});
    memory += count * size_of(type);
  }
  return pieces;
}

class BucketGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::no_gpu(); !why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
    for (const std::size_t count : counts()) all_ += count;
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }
  cudaStream_t stream_ = nullptr;
  std::size_t all_ = 0;
};

TEST_F(BucketGpu, HasTheTwinsBits) {
  for (const Element from : elements) {
    for (const Element to : elements) {
      for (const double scale : {1.0, -1.0 / 3, 1e-3}) {
        SCOPED_TRACE(::testing::Message()
                     << static_cast<int>(from) << " to " << static_cast<int>(to) << " times " << scale);
        Bytes input = noise(all_ * size_of(from));
        Bytes wanted(all_ * size_of(to)), got(wanted.size());
        const GpuMemory input_there(input), output_there(got);

        const Format there{.pieces = from, .flat = to, .scale = scale};
        flatten(wanted.data(), pieces_in(input.data(), from), there);
        flatten(output_there.data(), pieces_in(input_there.data(), from), there, stream_);
        output_there.read(got);
        EXPECT_TRUE(got == wanted) << "flatten";

        const Format back{.pieces = to, .flat = from, .scale = scale};
        std::memset(got.data(), 0, got.size());
        ASSERT_EQ(cudaMemset(output_there.data(), 0, got.size()), cudaSuccess);
        unflatten(pieces_in(wanted.data(), to), input.data(), back);
        unflatten(pieces_in(output_there.data(), to), input_there.data(), back, stream_);
        output_there.read(got);
        EXPECT_TRUE(got == wanted) << "unflatten";
      }
    }
  }
}

}  // namespace bucket_gpu_test
}  // namespace weft::collectives::bucket::testing

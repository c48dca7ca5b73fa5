// The kernels of a fused update against their twin, bit for bit. Skipped without a GPU; they have never run
// on one: docs/gpu.md.
#include <weft/dist_optim/fused/fused_update.h>

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <vector>

#include "tests/support/gpu_memory.h"

namespace weft::dist_optim::fused::testing {
namespace fused_update_gpu_test {

using test::GpuMemory;

// More pieces than one launch takes, one of more than a block, some of none.
std::vector<std::size_t> counts() {
  std::vector<std::size_t> made{1, 0, 70'001, 4096, 4097};
  for (std::size_t i = 0; i < 150; ++i) made.push_back(i * 7 % 131);
  return made;
}

class FusedUpdateGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = test::no_gpu(); !why.empty()) GTEST_SKIP() << why;
    ASSERT_EQ(cudaStreamCreate(&stream_), cudaSuccess);
  }
  void TearDown() override {
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  // Some steps of both, from the same parameters, with averages from zero. `pieces` makes those of the memory
  // of parameter, gradient and three states; `at` the options of a step.
  template <class T, class At, class Pieces>
  void compare(Element type, At at, Pieces pieces) {
    std::size_t all = 0;
    for (const std::size_t count : counts()) all += count;
    std::mt19937 random(5);
    std::normal_distribution<T> normal;
    std::array<std::vector<T>, 5> here;
    for (auto& values : here) values.assign(all, 0);
    for (T& value : here[0]) value = normal(random);
    for (T& value : here[1]) value = normal(random);
    here[1][3] = 0;
    std::array<std::unique_ptr<GpuMemory>, 5> there;
    std::array<T*, 5> ours, theirs;
    for (std::size_t i = 0; i < here.size(); ++i) {
      there[i] = std::make_unique<GpuMemory>(std::as_bytes(std::span(here[i])));
      ours[i] = here[i].data();
      theirs[i] = reinterpret_cast<T*>(there[i]->data());
    }
    for (int number = 1; number <= 4; ++number) {
      step(at(number), type, pieces(ours));
      step(at(number), type, pieces(theirs), stream_);
    }
    for (std::size_t i = 0; i < here.size(); ++i) {
      std::vector<T> got(all);
      there[i]->read(std::as_writable_bytes(std::span(got)));
      EXPECT_TRUE(got == here[i]) << "memory " << i;
    }
  }

  void compare(const Sgd& options) {
    const auto at = [&](int number) {
      Sgd now = options;
      now.first = number == 1;
      return now;
    };
    const auto pieces = []<class T>(const std::array<T*, 5>& memory) {
      std::vector<SgdPiece> made;
      std::size_t begin = 0;
      for (const std::size_t count : counts()) {
        made.push_back({memory[0] + begin, memory[1] + begin, memory[2] + begin, count});
        begin += count;
      }
      return made;
    };
    compare<float>(Element::float32, at, pieces);
    compare<double>(Element::float64, at, pieces);
  }

  void compare(const Adam& options) {
    const auto at = [&](int number) {
      Adam now = options;
      now.step = number;
      return now;
    };
    const auto pieces = []<class T>(const std::array<T*, 5>& memory) {
      std::vector<AdamPiece> made;
      std::size_t begin = 0;
      for (const std::size_t count : counts()) {
        made.push_back({memory[0] + begin, memory[1] + begin, memory[2] + begin, memory[3] + begin,
                        memory[4] + begin, count});
        begin += count;
      }
      return made;
    };
    compare<float>(Element::float32, at, pieces);
    compare<double>(Element::float64, at, pieces);
  }

  cudaStream_t stream_ = nullptr;
};

TEST_F(FusedUpdateGpu, SgdHasTheTwinsBits) {
  compare(Sgd{.lr = 0.01});
  compare(Sgd{.lr = 0.01, .momentum = 0.9, .dampening = 0.5, .weight_decay = 0.1});
  compare(Sgd{.lr = 0.01, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true, .maximize = true});
}

TEST_F(FusedUpdateGpu, AdamHasTheTwinsBits) {
  compare(Adam{});
  compare(Adam{.weight_decay = 0.1, .amsgrad = true});
  compare(Adam{.weight_decay = 0.1, .decoupled = true, .maximize = true});
}

}  // namespace fused_update_gpu_test
}  // namespace weft::dist_optim::fused::testing

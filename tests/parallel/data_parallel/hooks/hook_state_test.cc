#include <weft/parallel/data_parallel/hooks/internal/hook_state.h>

#include "tests/parallel/data_parallel/hooks/hooks.h"

namespace weft::data_parallel::hook_state_test {
namespace {

using namespace testing;
using Map = std::map<std::size_t, at::Tensor>;

struct State {
  std::int64_t number = 0;
  Map tensors = {};
  void save(torch::serialize::OutputArchive& archive) const {
    save_number(archive, "number", number);
    save_map(archive, "tensors", tensors);
  }
  void load(torch::serialize::InputArchive& archive) {
    number = load_number(archive, "number");
    tensors = load_map(archive, "tensors");
  }
};

TEST(HookState, RoundTripsThroughBytes) {
  const Map some = {{0, at::ones({2, 3})},
                    {9, at::zeros({0})},
                    {12, at::full({}, 3, at::kComplexDouble)},
                    {13, at::ones({2}, at::kHalf)},
                    {14, at::arange(6).view({2, 3}).t()}};
  for (const Map& tensors : {Map{}, some}) {
    State loaded;
    copy_state(State{std::int64_t{1} << 40, tensors}, loaded);
    EXPECT_EQ(loaded.number, std::int64_t{1} << 40);
    ASSERT_EQ(loaded.tensors.size(), tensors.size());
    for (const auto& [index, tensor] : tensors) {
      ASSERT_EQ(loaded.tensors.count(index), 1U);
      EXPECT_TRUE(at::equal(loaded.tensors[index], tensor));
      EXPECT_EQ(loaded.tensors[index].dtype(), tensor.dtype());
    }
  }
}

TEST(HookState, AMissingEntryIsAnError) {
  torch::serialize::OutputArchive out;
  save_number(out, "other", 1);
  std::stringstream bytes;
  out.save_to(bytes);
  torch::serialize::InputArchive in;
  in.load_from(bytes);
  expect_invalid([&] { load_map(in, "tensors"); }, "load: the archive has no entry 'tensors'");
  expect_invalid([&] { load_number(in, "number"); }, "load: the archive has no entry 'number'");
}

}  // namespace
}  // namespace weft::data_parallel::hook_state_test

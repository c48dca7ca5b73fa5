// States of several ranks, and a folder for their checkpoints.
#pragma once

#include <weft/parallel/sharded/checkpoint/checkpoints.h>

#include <ATen/ATen.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/parallel/collectives/company.h"
#include "tests/support/errors.h"
#include "tests/support/torch_python.h"

namespace weft::sharded::testing {

using collectives::Group;
using collectives::testing::Company;
using rpc::ErrorKind;
using test::error_of;
using test::got;

// A folder that is removed at the end.
struct Folder {
  test::TemporaryFolder made;
  const std::filesystem::path path = made.path();
};

using Whole = std::map<std::string, at::Tensor>;

// A state with every dtype of the format, and with tensors that have no elements, no dimensions, or fewer
// elements than ranks.
inline Whole whole_state(std::int64_t seed) {
  Whole whole;
  const auto numbers = [&](at::IntArrayRef sizes) {
    std::int64_t n = 1;
    for (const auto size : sizes) n *= size;
    return ((at::arange(n) * 31 + seed * 7 + 3) % 113).view(sizes);
  };
  for (const auto type : {at::kDouble, at::kFloat, at::kHalf, at::kBFloat16, at::kFloat8_e4m3fn,
                          at::kFloat8_e5m2, at::kLong, at::kInt, at::kShort, at::kChar, at::kByte, at::kBool})
    whole[std::string("of/") + c10::toString(type)] = numbers({5, 7}).to(type);
  whole["large"] = numbers({300, 1001}).to(at::kFloat);  // more than a block of checksums
  whole["empty"] = at::empty({3, 0, 2});
  whole["scalar"] = at::scalar_tensor(2.5 + static_cast<double>(seed));
  whole["two"] = numbers({2}).to(at::kFloat);
  return whole;
}

inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.contiguous().reshape({-1}).view(at::kByte);
}
inline void expect_same(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.scalar_type(), b.scalar_type()) << what;
  ASSERT_EQ(a.numel(), b.numel()) << what;
  EXPECT_TRUE(at::equal(bytes_of(a), bytes_of(b))) << what;
}

using Range = std::pair<std::int64_t, std::int64_t>;
// Returns the elements of a tensor that a rank has. nullopt: the rank does not have the tensor.
using Split = std::function<std::optional<Range>(const std::string& name, std::int64_t elements)>;

inline Split even_split(int rank, int ranks) {
  return [=](const std::string&, std::int64_t n) {
    const std::int64_t part = (n + ranks - 1) / ranks;
    return Range{std::min(n, rank * part), std::min(n, (rank + 1) * part)};
  };
}

inline SlicedState state_of(const Whole& whole, const Split& split) {
  SlicedState state;
  for (const auto& [name, tensor] : whole)
    if (const auto range = split(name, tensor.numel()))
      state.tensors[name] = {tensor.sizes().vec(), range->first,
                             tensor.reshape({-1}).slice(0, range->first, range->second).clone()};
  return state;
}
// A state of the same shapes with zeros, into which a checkpoint is loaded.
inline SlicedState blank(SlicedState state) {
  for (auto& [name, tensor] : state.tensors) tensor.values = at::zeros_like(tensor.values);
  state.notes.clear();
  return state;
}
inline void expect_loaded(const SlicedState& state, const Whole& whole) {
  for (const auto& [name, tensor] : state.tensors)
    expect_same(tensor.values,
                whole.at(name).reshape({-1}).slice(0, tensor.begin, tensor.begin + tensor.values.numel()),
                name);
}

// Several ranks in this process, each with its Checkpoints; they are called in one thread each.
class Job {
 public:
  explicit Job(int ranks, const std::filesystem::path& folder, CheckpointOptions options = {})
      : company(ranks), groups(company.groups()), checkpoints(groups.size()) {
    each([&](int rank) {
      checkpoints[static_cast<std::size_t>(rank)] =
          std::make_unique<Checkpoints>(groups[static_cast<std::size_t>(rank)], folder, options);
    });
  }
  int ranks() const { return static_cast<int>(groups.size()); }
  Checkpoints& operator[](int rank) { return *checkpoints[static_cast<std::size_t>(rank)]; }
  // Calls f(rank) for all ranks at the same time. Throws the first error.
  template <class F>
  void each(F f) {
    collectives::testing::on_ranks(groups, [&](const Group& group) { f(group.rank()); });
  }
  // Returns the futures by rank. state: returns the state of a rank.
  std::vector<rpc::Future<void>> begin_save(std::int64_t step, const std::function<SlicedState(int)>& state) {
    std::vector<rpc::Future<void>> saved(groups.size());
    each([&](int rank) { saved[static_cast<std::size_t>(rank)] = (*this)[rank].save(step, state(rank)); });
    return saved;
  }
  void save(std::int64_t step, const std::function<SlicedState(int)>& state) {
    for (auto& saved : begin_save(step, state)) got(std::move(saved));
  }
  void save_even(std::int64_t step) {
    save(step, [&](int rank) {
      SlicedState state = state_of(whole_state(step), even_split(rank, ranks()));
      state.notes = {{"step", std::to_string(step)}, {"rank", std::to_string(rank)}};
      return state;
    });
  }
  std::optional<std::int64_t> latest() {
    std::vector<std::optional<std::int64_t>> latest(groups.size());
    each([&](int rank) { latest[static_cast<std::size_t>(rank)] = (*this)[rank].latest(); });
    for (const auto& one : latest) EXPECT_EQ(one, latest.front());
    return latest.front();
  }
  void expect_holds(std::int64_t step) {
    const Whole whole = whole_state(step);
    each([&](int rank) {
      SlicedState wanted = blank(state_of(whole, even_split(rank, ranks())));
      EXPECT_EQ((*this)[rank].load(step, wanted).at("step"), std::to_string(step));
      expect_loaded(wanted, whole);
    });
  }

  Company company;
  std::vector<Group> groups;
  std::vector<std::unique_ptr<Checkpoints>> checkpoints;
};

}  // namespace weft::sharded::testing

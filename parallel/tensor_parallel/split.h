// Split, SplitModule, Placement: describe how the parameters of a module are split over the ranks of groups.
//
//   for (const Placement& each : placements(*model))       // split ones, and those that all ranks have
//     if (!each.splits.empty()) std::cout << each.name << " is split\n";
//
// A SplitModule lists its split parameters. A parameter of any other module is replicated: all ranks have the
// same values of it, and the same gradient after backward. clip_grad_norm() and checkpoints
// (sharded/training_state.h) use placements(). Thread-safety: values; a SplitModule is like any
// torch::nn::Module.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Generator.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::tensor_parallel {

// Returns size / group.size(). invalid_argument, which names `what`, unless the size is a multiple of the
// group's size.
WEFT_EXPORT std::int64_t divide(const collectives::Group& group, std::int64_t size, const std::string& what);

// The split of a tensor along one dimension over the ranks of a group. If the size of the dimension is not a
// multiple of the group's size, the first ranks have one element more.
struct WEFT_EXPORT Split {
  collectives::Group group;
  std::int64_t dim = 0;
  std::int64_t size = 0;  // of that dimension in the whole tensor
  // The number of equal blocks in the dimension; each rank has a range of every block. For example 3, for the
  // queries, keys and values of this rank's heads.
  std::int64_t blocks = 1;

  std::int64_t begin() const { return begin_of(group.rank()); }                 // of this rank, in each block
  std::int64_t length() const { return begin_of(group.rank() + 1) - begin(); }  // of this rank, in each block
  // A copy of this rank's elements.
  at::Tensor part_of(const at::Tensor& whole) const;

 private:
  std::int64_t begin_of(std::int64_t rank) const {
    const std::int64_t block = size / blocks;
    return rank * (block / group.size()) + std::min(rank, block % group.size());
  }
};

// A module some of whose parameters are split.
class WEFT_EXPORT SplitModule : public torch::nn::Module {
 public:
  // The split parameters of the module, by name, without those of submodules.
  const std::vector<std::pair<std::string, Split>>& splits() const { return splits_; }

 protected:
  // Registers a parameter with this rank's part of the whole tensor, and returns it.
  at::Tensor register_split(const std::string& name, const at::Tensor& whole, Split split);

 private:
  std::vector<std::pair<std::string, Split>> splits_;
};

// One parameter as this rank has it.
struct Placement {
  std::string name;
  at::Tensor tensor;
  std::vector<Split> splits;  // empty: replicated; several: each splits the part of the previous one
  // true: the norm counts the gradient of another rank's copy instead of this rank's gradient, for example
  // because two stages share the parameter.
  bool counts_elsewhere = false;
};

// All parameters of the module, each once.
WEFT_EXPORT std::vector<Placement> placements(const torch::nn::Module& module);

// Draw the initial values of a whole tensor of the default type, as LibTorch's linear layers and embeddings
// do. The generator must have the same state on all ranks; the layers' constructors compare it. nullopt:
// LibTorch's default generator for the CPU, which torch::manual_seed() sets.
WEFT_EXPORT at::Tensor draw_uniform(at::IntArrayRef sizes, double bound,
                                    std::optional<at::Generator> generator);
WEFT_EXPORT at::Tensor draw_normal(at::IntArrayRef sizes, double deviation,
                                   std::optional<at::Generator> generator);

}  // namespace weft::tensor_parallel

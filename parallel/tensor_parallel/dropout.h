// DropoutGenerators: random numbers for dropout in a model that is split over the ranks of a group.
//
//   DropoutGenerators generators(group, seed);
//   hidden = dropout(hidden, 0.1, generators.split());      // split over the ranks: different numbers
//   x = x + dropout(output, 0.1, generators.whole());       // equal on all ranks: equal numbers
//
// If all ranks have equal activations, they must drop equal elements. If the activations are split, the ranks
// must draw different numbers, since equal masks would repeat the same pattern on every rank. With sequence
// parallel, the activations outside of the linear layers are split. Ranks that differ in another dimension of
// a mesh (data, pipeline) must use different seeds. The program owns the object. Not thread-safe. Use state()
// and set_state() for checkpoints. To draw the same numbers in a recomputed forward, give both() to
// dist_autograd::activation_checkpoint(), or to the pipeline's stage (Stage::generators). Each stage that
// another thread computes needs generators of its own.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <vector>

namespace weft::tensor_parallel {

class WEFT_EXPORT DropoutGenerators {
 public:
  // Runs no collective. seed: equal on all ranks of the group. device: of the activations.
  DropoutGenerators(const collectives::Group& group, std::uint64_t seed,
                    c10::Device device = c10::Device(c10::kCPU));

  at::Generator& whole() { return whole_; }  // draws the same on all ranks
  at::Generator& split() { return split_; }  // draws other numbers on each rank
  std::vector<at::Generator> both() const { return {whole_, split_}; }

  // The states of both generators, as bytes in host memory.
  std::vector<at::Tensor> state() const;
  void set_state(const std::vector<at::Tensor>& state);

 private:
  at::Generator whole_, split_;
};

// Sets each element to zero with this probability, and divides the others by 1 - probability. training false:
// returns the input. On the CPU it drops the same elements as torch::dropout does with a generator in the
// same state. invalid_argument: probability is not in [0, 1).
WEFT_EXPORT at::Tensor dropout(const at::Tensor& input, double probability, at::Generator& generator,
                               bool training = true);

}  // namespace weft::tensor_parallel

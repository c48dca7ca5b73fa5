#include <weft/parallel/tensor_parallel/dropout.h>

#include <weft/parallel/tensor_parallel/internal/agreement.h>
#include <weft/rpc/core/split_mix.h>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <c10/core/GradMode.h>

#include <mutex>

namespace weft::tensor_parallel {
namespace {

at::Generator seeded(c10::Device device, std::uint64_t seed) {
  at::Generator generator = at::globalContext().defaultGenerator(device).clone();
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
  return generator;
}

// Gives unrelated results for consecutive seeds and ranks.
std::uint64_t seed_of(std::uint64_t seed, int rank) {
  return rpc::split_mix(seed + rpc::split_mix_step * static_cast<std::uint64_t>(rank + 1));
}

}  // namespace

DropoutGenerators::DropoutGenerators(const collectives::Group& group, std::uint64_t seed, c10::Device device)
    : whole_(seeded(device, seed)), split_(seeded(device, seed_of(seed, group.rank()))) {}

std::vector<at::Tensor> DropoutGenerators::state() const { return {whole_.get_state(), split_.get_state()}; }

void DropoutGenerators::set_state(const std::vector<at::Tensor>& state) {
  if (state.size() != 2)
    refuse("DropoutGenerators::set_state",
           std::to_string(state.size()) + " tensors, expected the two of state()");
  whole_.set_state(state[0]);
  split_.set_state(state[1]);
}

at::Tensor dropout(const at::Tensor& input, double probability, at::Generator& generator, bool training) {
  if (!(probability >= 0 && probability < 1))
    refuse("dropout",
           "the probability is " + std::to_string(probability) + ", expected at least 0 and less than 1");
  if (!training || probability == 0) return input;
  at::Tensor mask;
  {
    const at::NoGradGuard no_grad;
    mask = at::empty_like(input).bernoulli_(1 - probability, generator).div_(1 - probability);
  }
  return input * mask;
}

}  // namespace weft::tensor_parallel

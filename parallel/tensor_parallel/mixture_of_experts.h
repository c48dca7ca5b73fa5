// MixtureOfExperts: a layer of many small multilayer perceptrons, of which a router selects a few for each
// token; the experts are split over the ranks of a group (expert parallel; Shazeer et al., 2017; GShard,
// Lepikhin et al., 2020; Switch Transformers, Fedus et al., 2021).
//
//   auto experts = register_module("experts", MixtureOfExperts(group, width, {.experts = 8, .top_k = 2}));
//   auto [output, balance] = experts(x);
//   loss = loss_of(x + output) + 0.01 * balance;
//
// Each rank has its own tokens and some of the experts. A rank sends each of its tokens to the ranks of the
// experts that the router has selected (all_to_all_v) and adds their outputs, weighted by the router's
// probabilities. An expert is Linear, GELU, Linear. Experts and router have the same initial values for any
// number of ranks. The host reads the numbers of tokens, so forward waits for the device.
//
// The gradient of an expert is that of the sum of the losses of all ranks. The router is a replicated
// parameter, and its gradient is that of this rank's loss. To use a DistributedDataParallel over the same
// ranks, list the experts' parameters in its Options::ignored, and set average_gradients. The gradients of
// experts and router are then both those of the mean of all losses.
//
// Construction, errors, groups and thread-safety are as in linear.h. A rank may have any number of tokens,
// also none.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <torch/nn/pimpl.h>

#include <optional>
#include <ostream>

namespace weft::tensor_parallel {

// How the layer is split and initialized.
struct MixtureOptions {
  std::int64_t experts = 8;  // of all ranks together; a multiple of the number of ranks
  std::int64_t hidden = 0;   // features within an expert; 0: four times the width
  std::int64_t top_k = 1;    // experts of a token
  // true: the weights of a token's experts are divided by their sum.
  bool normalize = false;
  // An expert processes at most ceil(capacity_factor * tokens * top_k / experts) of each rank's tokens: first
  // choices before second ones, then in the order of the tokens. Further tokens get no output of this expert.
  // nullopt: no limit.
  std::optional<double> capacity_factor = {};
  bool average_gradients = false;               // true: divides the experts' gradients by the number of ranks
  std::optional<at::Generator> generator = {};  // draw_uniform()
};

class WEFT_EXPORT MixtureOfExpertsImpl final : public SplitModule {
 public:
  // The result of forward.
  struct Output {
    at::Tensor output;  // of the input's shape
    // The auxiliary loss for the balance of the experts: experts * sum over the experts of f * p. Here f is
    // the expert's fraction of the choices of all ranks' tokens, and p is its mean probability for this
    // rank's tokens. The loss is 1 if all experts have equally many tokens. If the ranks have equally many
    // tokens, the mean of the ranks' losses equals the loss of one process with all tokens.
    at::Tensor balance;
  };

  // width: features of a token.
  MixtureOfExpertsImpl(const collectives::Group& group, std::int64_t width, MixtureOptions options = {});

  // input: [..., width].
  Output forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

  at::Tensor router;           // [experts, width], equal on all ranks
  at::Tensor up, up_bias;      // [experts of this rank, hidden, width], [experts of this rank, hidden]
  at::Tensor down, down_bias;  // [experts of this rank, width, hidden], [experts of this rank, width]

 private:
  struct Route;
  Route route(const at::Tensor& probabilities) const;
  at::Tensor run_experts(const at::Tensor& rows, const at::Tensor& counts) const;

  const MixtureOptions options_;
  const collectives::Group group_;
};
TORCH_MODULE(MixtureOfExperts);

}  // namespace weft::tensor_parallel

// activation_checkpoint: a forward that keeps its inputs instead of the tensors that its operators save, and
// that runs again in the backward (torch.utils.checkpoint).
//
//   at::Tensor y = dist_autograd::activation_checkpoint(*block, x);       // a module with forward(Tensor)
//   auto out = dist_autograd::activation_checkpoint(
//       [&](const std::vector<at::Tensor>& in) { return run(in); }, {x, mask}, block->parameters());
//
// It is one node of the graph, with edges to the inputs and to the parameters. So it works in a pass and
// under LibTorch's engine, and each gradient is accumulated as it would be without it. The second run has the
// autocast state of the first. If the first run drew random numbers, the second draws the same ones: the
// generators of the process, of the inputs' devices, and the given ones are reset for it, so no other thread
// may draw from them meanwhile. The forward runs on one worker: calls of a pass within it are refused in the
// second run. Thread-safety: as the operators within.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <vector>

namespace weft::dist_autograd {

// The outputs for the inputs; called once in the forward and once in the backward.
using CheckpointedForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// parameters: all leaves that the forward uses, other than its inputs. generators: generators of the program
// from which the forward draws. The forward must give the same results each time. The backward fails with
// failed_precondition if the forward used another leaf, and with unsupported if it is itself recorded
// (create_graph).
WEFT_EXPORT std::vector<at::Tensor> activation_checkpoint(CheckpointedForward forward,
                                                          std::vector<at::Tensor> inputs,
                                                          std::vector<at::Tensor> parameters,
                                                          const std::vector<at::Generator>& generators = {});

// For a module: its own parameters. The graph keeps the module.
template <class Module>
  requires requires(Module& module, at::Tensor input) {
    { module.forward(input) } -> std::convertible_to<at::Tensor>;
    module.shared_from_this();
    module.parameters();
  }
at::Tensor activation_checkpoint(Module& module, at::Tensor input,
                                 const std::vector<at::Generator>& generators = {}) {
  auto forward = [kept = module.shared_from_this(), &module](const std::vector<at::Tensor>& inputs) {
    return std::vector<at::Tensor>{module.forward(inputs[0])};
  };
  return activation_checkpoint(std::move(forward), {std::move(input)}, module.parameters(), generators)[0];
}

}  // namespace weft::dist_autograd

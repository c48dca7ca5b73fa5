// activation_checkpoint: a forward that keeps its inputs instead of the tensors that its operators save, and
// that runs again in the backward (torch.utils.checkpoint).
//
//   at::Tensor y = dist_autograd::activation_checkpoint(*block, x);       // a module with forward(Tensor)
//   auto out = dist_autograd::activation_checkpoint(
//       [&](const std::vector<at::Tensor>& in) { return run(in); }, {x, mask}, block->parameters());
//
// The whole forward is one node of the graph, with edges to the inputs and to the parameters. So it works in
// a pass and under LibTorch's engine, and the gradients are accumulated as without activation_checkpoint. The
// second run has the autocast state of the first. If the first run drew random numbers, the second run draws
// the same numbers: it starts with the states that the generators had before the first run. These are the
// generators of the process, those of the inputs' devices, and the program's `generators`. If another thread
// draws from one of them during a run, so that the runs have different numbers, the backward fails with
// failed_precondition; on an accelerator, this is detected by the generators' states alone. The forward must
// not call another worker in a pass: the second run refuses such calls. As thread-safe as the operators that
// the forward calls.
#pragma once

#include <weft/rpc/core/export.h>

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <vector>

namespace weft::dist_autograd {

// Returns the outputs for the inputs. Called once in the forward and once in the backward.
using CheckpointedForward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// parameters: all leaves that the forward uses, other than its inputs. generators: generators of the program
// from which the forward draws. The forward must give the same results each time. The backward fails with
// failed_precondition if the forward used another leaf, and with unsupported if the backward is itself
// recorded (create_graph).
WEFT_EXPORT std::vector<at::Tensor> activation_checkpoint(CheckpointedForward forward,
                                                          std::vector<at::Tensor> inputs,
                                                          std::vector<at::Tensor> parameters,
                                                          const std::vector<at::Generator>& generators = {});

// The same for a module's forward() and parameters. The graph keeps the module alive.
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

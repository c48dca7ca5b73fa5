// broadcast_parameters(), broadcast_optimizer_state(): give all ranks the parameters of one rank, and the
// state of its optimizer: momenta, step counts, options.
//
// At the start of training; after a join, whose ranks made different numbers of steps; or after a checkpoint
// that only one rank has read. All ranks of the group call these functions, and those
// that return no future block.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <vector>

namespace weft::data_parallel {

// In place, one collective for each dtype and device. The tensors have the same shapes, strides and order on
// all ranks; shapes are compared (invalid_argument).
WEFT_EXPORT rpc::Future<void> broadcast_tensors(const collectives::Group& group,
                                                const std::vector<at::Tensor>& tensors, int source);

// Parameters and buffers of the module. The names are compared first: failed_precondition on all ranks, with
// the first difference.
WEFT_EXPORT void broadcast_parameters(const collectives::Group& group, const torch::nn::Module& module,
                                      int source);
// The same for named tensors, such as module.named_parameters().
WEFT_EXPORT void broadcast_parameters(const collectives::Group& group,
                                      const torch::OrderedDict<std::string, at::Tensor>& tensors, int source);

// The optimizers are of one type, for the same parameters.
WEFT_EXPORT void broadcast_optimizer_state(const collectives::Group& group,
                                           torch::optim::Optimizer& optimizer, int source);

}  // namespace weft::data_parallel

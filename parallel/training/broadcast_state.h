// broadcast_parameters(), broadcast_optimizer_state(): give all ranks the parameters of one rank, and the
// state of its optimizer (momenta, step counts, options).
//
// Call them at the start of training, after a join in which the ranks made different numbers of steps, or
// after only one rank has read a checkpoint. All ranks of the group call these functions. Functions that
// return no future block.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/ordered_dict.h>

#include <vector>

namespace weft::training {

// Copies the tensors of rank `source` into the tensors of all ranks, with one collective for each dtype and
// device. The tensors must have the same shapes, dtypes and order on all ranks; their strides may differ.
// invalid_argument on all ranks: the shapes or dtypes differ. If the tensors have several dtypes or devices,
// an error ends the group.
WEFT_EXPORT rpc::Future<void> broadcast_tensors(const collectives::Group& group,
                                                const std::vector<at::Tensor>& tensors, int source);

// Broadcasts the parameters and buffers of the module. If their names, dtypes or shapes differ between ranks,
// the call fails on all ranks with failed_precondition, which names the first difference. Their strides may
// differ.
WEFT_EXPORT void broadcast_parameters(const collectives::Group& group, const torch::nn::Module& module,
                                      int source);
// The same for named tensors, such as module.named_parameters().
WEFT_EXPORT void broadcast_parameters(const collectives::Group& group,
                                      const torch::OrderedDict<std::string, at::Tensor>& tensors, int source);

// Sets which of the parameters require grad, as on rank `source`. The number of parameters must be the same
// on all ranks.
WEFT_EXPORT void share_requires_grad(const collectives::Group& group,
                                     const std::vector<at::Tensor>& parameters, int source);

// Broadcasts the optimizer's state and options. All ranks must have the same type of optimizer, with the same
// parameters.
WEFT_EXPORT void broadcast_optimizer_state(const collectives::Group& group,
                                           torch::optim::Optimizer& optimizer, int source);

}  // namespace weft::training

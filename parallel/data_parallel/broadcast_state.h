// broadcast_optimizer_state(): gives all ranks the state of one rank's optimizer: momenta, step counts,
// options.
//
// After a join, whose ranks made different numbers of steps; or after a checkpoint that only one rank has
// read. The optimizers are of one type, for the same parameters. All ranks of the group call it, and it
// blocks.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <torch/optim/optimizer.h>

namespace weft::data_parallel {

WEFT_EXPORT void broadcast_optimizer_state(const collectives::Group& group,
                                           torch::optim::Optimizer& optimizer, int source);

}  // namespace weft::data_parallel

// gather_state: combines the ranks' parts of an optimizer's state to the state of whole parameters.
//
// The ranks exchange the names and counts of all fields first, then the elements, one parameter at a time: a
// rank needs memory for the result and one parameter. A plain function over values.
#pragma once

#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/parallel/sharded/internal/flat_parameters.h>

#include <optional>
#include <vector>

namespace weft::sharded {

// All ranks call it, and it blocks. parameters: those of `buckets`. own: the state of this rank's slices.
// root: the rank that gets the result; nullopt: all ranks. The result is in host memory; on the other ranks
// it has no tensors. tag: of the messages between the ranks. invalid_argument: the learning rates of the
// ranks differ, or dist_optim::reslice() refuses the parts on a rank that gets the result.
dist_optim::OptimizerState gather_state(const collectives::Group& group,
                                        const std::vector<dist_optim::Parameter>& parameters,
                                        const std::vector<FlatParameters::Bucket>& buckets,
                                        const dist_optim::OptimizerState& own, std::optional<int> root,
                                        std::uint64_t tag);

}  // namespace weft::sharded

// gather_state: makes the optimizer's state of whole parameters from the parts that the ranks have.
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
// root: the rank that wants the result; nullopt: all do. The result is in the host's memory, and has no
// tensors on other ranks. tag: of the messages between the ranks. invalid_argument: the learning rates of the
// ranks differ; on a rank that wants the result, dist_optim::reslice() refuses the parts.
dist_optim::OptimizerState gather_state(const collectives::Group& group,
                                        const std::vector<dist_optim::Parameter>& parameters,
                                        const std::vector<FlatParameters::Bucket>& buckets,
                                        const dist_optim::OptimizerState& own, std::optional<int> root,
                                        std::uint64_t tag);

}  // namespace weft::sharded

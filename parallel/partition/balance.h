// Balance: divides a sequence of costs into consecutive blocks of similar cost.
//
// block_partition() is what torchgpipe's balance_by_time and balance_by_size use: the algorithm of I. Barany
// and V. S. Grinberg, "Block Partitions of Sequences" (arXiv:1308.2452). It bounds the difference between the
// largest and the smallest block by the range of the costs, and is not optimal. exact_partition() finds the
// smallest possible largest block, which is a pipeline's bottleneck. Errors: rpc::Error with the kind
// invalid_argument. Pure functions.
#pragma once

#include <weft/parallel/partition/partition.h>

#include <cstddef>
#include <span>
#include <vector>

namespace weft::partition {

// The numbers of costs in each of `blocks` blocks, all at least 1 if costs are at least 0. Both fail with
// invalid_argument if there are no blocks, more blocks than costs, or a cost that is negative or not finite.
//
// As torchgpipe, except among several smallest blocks of equal size: the closest to the largest block grows,
// as in the paper, and not the first. (torchgpipe moves block boundaries across each other then.)
WEFT_EXPORT std::vector<std::size_t> block_partition(std::span<const double> costs, std::size_t blocks);
// O(blocks * costs * log(costs)).
WEFT_EXPORT std::vector<std::size_t> exact_partition(std::span<const double> costs, std::size_t blocks);

// Stages of the topological order of the layers. The costs are forward and backward times.
WEFT_EXPORT Partition balance_by_time(const Profile& profile, std::size_t stages);
WEFT_EXPORT Partition balance_exactly(const Profile& profile, std::size_t stages);
// The costs are the bytes of activations and of parameter_copies times the parameters: the parameters, their
// gradients, and what the optimizer keeps. 2 to 3 suit SGD, 4 to 5 Adam (torchgpipe's param_scale).
WEFT_EXPORT Partition balance_by_size(const Profile& profile, std::size_t stages,
                                      double parameter_copies = 2);

}  // namespace weft::partition

// Balance: divides a sequence of costs into consecutive blocks of similar cost.
//
// block_partition() is the algorithm of I. Barany and V. S. Grinberg, "Block Partitions of Sequences"
// (arXiv:1308.2452), which torchgpipe's balance_by_time and balance_by_size use. It bounds the difference
// between the largest and the smallest block by the range of the costs, and is not optimal. exact_partition()
// minimizes the largest block, which is a pipeline's bottleneck. Errors: rpc::Error with the kind
// invalid_argument. Pure functions.
#pragma once

#include <weft/parallel/partition/partition.h>

#include <cstddef>
#include <span>
#include <vector>

namespace weft::partition {

// Return the number of costs in each of `blocks` blocks; each is at least 1. invalid_argument: no blocks,
// more blocks than costs, or a cost that is negative or not finite.
//
// If several smallest blocks have equal size, block_partition() differs from torchgpipe. It enlarges the
// block that is closest to the largest block, as in the paper. torchgpipe enlarges the first of these blocks,
// and boundaries of blocks may then cross.
WEFT_EXPORT std::vector<std::size_t> block_partition(std::span<const double> costs, std::size_t blocks);
// Takes O(blocks * costs * log(costs)) time.
WEFT_EXPORT std::vector<std::size_t> exact_partition(std::span<const double> costs, std::size_t blocks);

// Divide the topological order of the layers into stages, each of which has at least one layer that is not an
// input. The cost of a layer is its forward and backward time; inputs have no cost. invalid_argument: no
// stages, or more stages than such layers.
WEFT_EXPORT Partition balance_by_time(const Profile& profile, std::size_t stages);
WEFT_EXPORT Partition balance_exactly(const Profile& profile, std::size_t stages);
// The cost of a layer is its bytes of activations plus parameter_copies times its bytes of parameters. The
// copies are the parameters, their gradients and the optimizer's state. Use 2 to 3 for SGD, and 4 to 5 for
// Adam (torchgpipe's param_scale).
WEFT_EXPORT Partition balance_by_size(const Profile& profile, std::size_t stages,
                                      double parameter_copies = 2);

}  // namespace weft::partition

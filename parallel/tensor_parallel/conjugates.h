// Megatron-LM's conjugate functions (Shoeybi et al., 2019; Korthikanti et al., 2022): from tensors that are
// equal on all ranks of a group to tensors of which each rank has a part, and back.
//
//   at::Tensor hidden = torch::gelu(at::linear(copy_to_ranks(group, x), up));    // up: this rank's rows
//   at::Tensor output = reduce_from_ranks(group, at::linear(hidden, down));      // down: its columns
//
//   function           forward          backward         in Megatron-LM
//   copy_to_ranks      identity         all-reduce       copy_to_tensor_model_parallel_region (f)
//   reduce_from_ranks  all-reduce       identity         reduce_from_tensor_model_parallel_region (g)
//   split_to_ranks     split            all-gather       scatter_to_tensor_model_parallel_region
//   gather_from_ranks  all-gather       split            gather_from_tensor_model_parallel_region
//   gather_sequence    all-gather       reduce-scatter   gather_from_sequence_parallel_region
//   scatter_sequence   reduce-scatter   all-gather       reduce_scatter_to_sequence_parallel_region
//
// The first two, the next two and the last two are partners: the backward of one is the forward of the other.
// All call functions of collectives/functional.h, which states what must be equal on all ranks, how errors
// are reported, and when calls block. The size of a dimension that is split must be a multiple of the group's
// size; otherwise invalid_argument. As thread-safe as Group.
#pragma once

#include <weft/parallel/collectives/functional.h>

namespace weft::tensor_parallel {

// Returns the input, which must be equal on all ranks. Each rank computes different values from it.
inline at::Tensor copy_to_ranks(const collectives::Group& group, const at::Tensor& input) {
  return collectives::functional::copy(group, input);
}
// Returns the sum of the ranks' inputs. All ranks compute the same values from it.
inline at::Tensor reduce_from_ranks(const collectives::Group& group, const at::Tensor& input) {
  return collectives::functional::all_reduce(group, input, collectives::ReduceOp::sum,
                                             collectives::functional::Copies::same);
}

// Returns this rank's part, along `dim`, of an input that is equal on all ranks.
inline at::Tensor split_to_ranks(const collectives::Group& group, const at::Tensor& input,
                                 std::int64_t dim = -1) {
  return collectives::functional::split(group, input, dim);
}
// Joins the ranks' parts along `dim`. All ranks compute the same values from the result.
inline at::Tensor gather_from_ranks(const collectives::Group& group, const at::Tensor& input,
                                    std::int64_t dim = -1) {
  return collectives::functional::all_gather(group, input, dim, collectives::functional::Copies::same);
}

// Joins the ranks' parts of a sequence along `dim`. Each rank computes different values from the result.
inline at::Tensor gather_sequence(const collectives::Group& group, const at::Tensor& input,
                                  std::int64_t dim = 0) {
  return collectives::functional::all_gather(group, input, dim);
}
// Returns this rank's part, along `dim`, of the sum of the ranks' inputs.
inline at::Tensor scatter_sequence(const collectives::Group& group, const at::Tensor& input,
                                   std::int64_t dim = 0) {
  return collectives::functional::reduce_scatter(group, input, dim);
}

}  // namespace weft::tensor_parallel

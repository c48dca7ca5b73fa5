// SparseGather: adds up the sparse gradients of all ranks for one parameter.
//
//   SparseGather gather(group, parameter, gradient);   // starts the exchange of sizes
//   gather.start_values();                             // waits for it, and starts that of rows
//   at::Tensor sum = gather.sum();                     // waits for it: a coalesced sparse tensor
//
// Both exchanges are collectives, so all ranks call these functions in one order with their other collectives
// of the group. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT SparseGather {
 public:
  // gradient: sparse (COO), of the parameter's shape; undefined is a zero.
  SparseGather(collectives::Group group, const at::Tensor& parameter, const at::Tensor& gradient);

  void start_values();
  at::Tensor sum();

 private:
  collectives::Group group_;
  std::vector<std::int64_t> sizes_;  // of the parameter
  at::TensorOptions options_;        // of its values
  at::Tensor own_;                   // coalesced; undefined: no gradient
  at::Tensor counts_;                // by rank: rows, sparse dimensions
  std::int64_t sparse_dim_ = 1;
  std::vector<at::Tensor> indices_, values_;  // by rank
  std::vector<rpc::Future<void>> in_flight_;
};

}  // namespace weft::data_parallel

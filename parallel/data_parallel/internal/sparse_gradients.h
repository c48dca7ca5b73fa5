// SparseGather: adds the sparse gradients of all ranks for one parameter.
//
// The exchange has the steps of a CommunicationHook: step 0 exchanges the numbers of rows, step 1 the indices
// and values of the rows, and step 2 starts nothing. If the ranks already know each other's numbers of rows,
// call only exchange_rows(). The steps start collectives, so all ranks must run them in the same order
// relative to their other collectives of the group. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

namespace torch::nn {
class Module;
}

namespace weft::data_parallel {

// The names of the parameters of Embedding and EmbeddingBag with the option `sparse`.
WEFT_EXPORT std::vector<std::string> sparse_parameters(const torch::nn::Module& module);

class WEFT_EXPORT SparseGather {
 public:
  // sizes, options: of the gradients, equal on all ranks. gradient: sparse (COO); undefined: zero.
  SparseGather(collectives::Group group, at::IntArrayRef sizes, const at::TensorOptions& options,
               const at::Tensor& gradient);

  // Runs a step. Call it when the collective of the previous step has completed.
  std::optional<rpc::Future<void>> run(int step);
  // counts: int64 [ranks, 2]; for each rank, the number of rows and the number of sparse dimensions of its
  // coalesced gradient. The second number is equal on all ranks that have rows.
  rpc::Future<void> exchange_rows(at::Tensor counts);
  at::Tensor sum() const;  // after the last step; a coalesced sparse tensor

 private:
  collectives::Group group_;
  std::vector<std::int64_t> sizes_;           // of the gradient
  at::TensorOptions options_;                 // of its values
  at::Tensor own_;                            // coalesced; undefined: no gradient
  at::Tensor counts_;                         // by rank: rows, sparse dimensions
  std::vector<at::Tensor> indices_, values_;  // by rank
};

}  // namespace weft::data_parallel

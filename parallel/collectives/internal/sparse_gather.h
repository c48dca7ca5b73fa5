// SparseGather: adds the sparse tensors (COO) of all ranks.
//
// It has two steps: the ranks exchange their numbers of rows, then the indices and values of their rows.
// run() does both as collectives, as the steps of a CommunicationHook: step 0 exchanges the numbers, step 1
// the rows, and step 2 starts nothing. All ranks must run these steps in the same order relative to their
// other collectives of the group. If the ranks already know each other's numbers of rows, call only one of
// the functions that exchange the rows: exchange_rows() by collectives, or send_rows() by messages, which
// have no order relative to collectives. Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace weft::collectives {

class WEFT_EXPORT SparseGather {
 public:
  // sizes, options: of the tensors and of their values, equal on all ranks. own: sparse (COO); undefined:
  // zero.
  SparseGather(Group group, at::IntArrayRef sizes, const at::TensorOptions& options, const at::Tensor& own);

  // The number of rows and the number of sparse dimensions of this rank's coalesced tensor.
  std::vector<std::int64_t> count() const;

  // Runs a step. Call it when the collective of the previous step has completed.
  std::optional<rpc::Future<void>> run(int step);
  // counts: int64 [ranks, 2], the count() of each rank. The second number must be equal on all ranks that
  // have rows; otherwise invalid_argument, on all ranks.
  rpc::Future<void> exchange_rows(at::Tensor counts);
  // Tensors of the host only. tag: of the messages; no other message of the group in flight has it.
  rpc::Future<void> send_rows(at::Tensor counts, std::uint64_t tag, Timeout timeout, Group::Site site);
  at::Tensor sum() const;  // after the last step; a coalesced sparse tensor

 private:
  void take_counts(at::Tensor counts);

  Group group_;
  std::vector<std::int64_t> sizes_;  // of the tensor
  at::TensorOptions options_;        // of its values
  at::Tensor own_;                   // coalesced; undefined: no rows
  at::Tensor counts_;                // by rank: rows, sparse dimensions
  // Of the rows. own_indices_, own_values_: of this rank.
  at::Tensor own_indices_, own_values_;
  std::vector<at::Tensor> indices_, values_;  // by rank
};

}  // namespace weft::collectives

// PendingReduction: one request of this rank until it is complete, and its properties that the ranks compare.
#pragma once

#include <weft/parallel/data_parallel/negotiated/internal/reduction_planner.h>
#include <weft/parallel/data_parallel/negotiated/internal/reduction_timeline.h>
#include <weft/parallel/data_parallel/negotiated/negotiated_reduction.h>
#include <weft/parallel/training/communication_stream.h>

#include <string>
#include <vector>

namespace weft::data_parallel {

struct PendingReduction {
  std::string name;
  std::vector<at::Tensor> tensors;
  ReductionCall call;
  rpc::Promise<void> promise;
  std::uint64_t bytes = 0;  // of all its tensors
  ReductionTimeline::Times times = {};
  std::size_t place = 0;                   // as in ReductionForm
  at::Tensor sparse_result = {};           // the caller's sparse tensor; `tensors` has a coalesced copy
  std::optional<c10::Event> written = {};  // on a device: when the caller's stream has the tensors
  bool is_zero = false;                    // zeros of a rank that has joined; no caller waits for it
  std::exception_ptr refusal = {};         // why this rank refuses the tensors; null: it does not

  bool is_sparse() const { return tensors.front().is_sparse(); }
};

// Sets `place`. Throws invalid_argument or unsupported if a NegotiatedReduction with these devices cannot
// reduce these tensors.
void check_reduction(PendingReduction& pending, const std::vector<c10::Device>& devices);
// Coalesces and scales the present values of the tensors. Returns the message to rank 0.
ReductionRequest prepare_reduction(PendingReduction& pending, const std::vector<c10::Device>& devices);
PendingReduction zeros_of(const std::string& name, const ReductionForm& form,
                          const std::vector<c10::Device>& devices);
// Multiplies the tensor by the factor. Integers are scaled in float64 and rounded toward zero, as in Horovod.
void scale(const at::Tensor& tensor, double factor);

}  // namespace weft::data_parallel

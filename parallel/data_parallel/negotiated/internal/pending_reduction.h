// PendingReduction: one request of this rank until it is complete, and what the ranks compare of it.
#pragma once

#include <weft/parallel/data_parallel/communication_stream.h>
#include <weft/parallel/data_parallel/negotiated/internal/reduction_timeline.h>
#include <weft/parallel/data_parallel/negotiated/negotiated_reduction.h>
#include <weft/parallel/data_parallel/negotiated/reduction_planner.h>

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
  at::Tensor sparse_result = {};           // the caller's tensor, if tensors has its coalesced values
  std::optional<c10::Event> written = {};  // on a device: when the caller's stream has the tensors
  bool is_zero = false;                    // of a rank that has joined: nobody has requested it

  bool is_sparse() const { return tensors.front().is_sparse(); }
};

// Throws invalid_argument or unsupported if a NegotiatedReduction with these devices does not reduce these
// tensors. Sets `place`.
void check_reduction(PendingReduction& pending, const std::vector<c10::Device>& devices);
// Takes the tensors as they are now: coalesced and scaled. Then the message to rank 0.
ReductionRequest prepare_reduction(PendingReduction& pending, const std::vector<c10::Device>& devices);
PendingReduction zeros_of(const std::string& name, const ReductionForm& form,
                          const std::vector<c10::Device>& devices);
// Integers as Horovod does: in float64, rounded toward zero.
void scale(const at::Tensor& tensor, double factor);

}  // namespace weft::data_parallel

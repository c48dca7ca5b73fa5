// PendingReduction: one request of this rank until it is complete, and what the ranks compare of it.
#pragma once

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
};

// Throws invalid_argument or unsupported if a NegotiatedReduction does not reduce these tensors.
void check_reduction(const PendingReduction& pending);
// The message to rank 0.
ReductionRequest request_of(const PendingReduction& pending);
void scale(std::vector<at::Tensor>& tensors, double factor);

}  // namespace weft::data_parallel

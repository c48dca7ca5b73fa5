// What the ranks of a NegotiatedReduction send each other: requests to rank 0, and rank 0's plans to all.
#pragma once

#include <weft/parallel/data_parallel/negotiated/reduction_planner.h>

namespace weft::data_parallel {

struct NegotiationRequests {
  std::vector<ReductionRequest> requests;
  bool closed = false;  // the last ones of this rank
  bool joined = false;  // the last ones of this rank until all ranks have joined
};
WEFT_CODEC(NegotiationRequests, requests, closed, joined)

struct NegotiationPlan {
  std::vector<ReductionLaunch> launches;
  bool closed = false;  // the last one for this rank
  std::uint64_t fusion_bytes = 0;
  std::int64_t cycle_ns = 0;
  std::string stalled = {};     // not empty: everything fails with deadline_exceeded and this text
  std::int32_t joined = -1;     // the rank that joined last, if all have
  std::string join_error = {};  // not empty: the join fails
};
WEFT_CODEC(NegotiationPlan, launches, closed, fusion_bytes, cycle_ns, stalled, joined, join_error)

}  // namespace weft::data_parallel

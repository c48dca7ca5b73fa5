// ReductionCoordinator: rank 0's part of a negotiation. It receives the requests of all ranks and decides
// when each plan is sent.
//
// Ready requests are planned at once if waiting for further ones gains nothing: no launch is in flight, and
// no request waits for a rank. Otherwise they are planned as soon as both are true, or their bytes reach the
// fusion threshold, or one cycle has passed.
//
// Owned by rank 0's NegotiatedReduction. Its functions run on the loop. It holds no group: `deliver` sends a
// plan to another rank, and for rank 0 executes the plan.
#pragma once

#include <weft/parallel/data_parallel/negotiated/internal/reduction_planner.h>
#include <weft/parallel/data_parallel/negotiated/negotiated_reduction.h>
#include <weft/rpc/core/log.h>

#include <functional>
#include <memory>

namespace weft::data_parallel {

// The messages between the ranks of a NegotiatedReduction: requests to rank 0, and rank 0's plans to all
// ranks.
struct NegotiationRequests {
  std::vector<ReductionRequest> requests;
  bool closed = false;  // the rank makes no further requests
  bool joined = false;  // the rank makes no further requests until all ranks have joined
};
WEFT_CODEC(NegotiationRequests, requests, closed, joined)

struct NegotiationPlan {
  std::vector<ReductionLaunch> launches;
  bool closed = false;  // the last plan for this rank
  std::uint64_t fusion_bytes = 0;
  std::int64_t cycle_ns = 0;
  std::string stalled = {};     // not empty: all requests fail with deadline_exceeded and this text
  std::int32_t joined = -1;     // the rank that joined last, if all have
  std::string join_error = {};  // not empty: the join fails
};
WEFT_CODEC(NegotiationPlan, launches, closed, fusion_bytes, cycle_ns, stalled, joined, join_error)

class WEFT_EXPORT ReductionCoordinator : public std::enable_shared_from_this<ReductionCoordinator> {
 public:
  using Deliver = std::function<void(int to, const NegotiationPlan& plan)>;
  using Log = std::function<void(rpc::LogLevel level, const std::string& text)>;

  ReductionCoordinator(std::shared_ptr<rpc::Loop> loop, int ranks, const NegotiationOptions& options,
                       std::uint64_t max_fused_request, Deliver deliver, Log log);

  void take(int from, NegotiationRequests message);
  // launches: the number of rank 0's launches that have completed, including failed ones. bytes: of the
  // launches that did not fail.
  void completed(std::size_t launches, std::uint64_t bytes);
  void stop() { over_ = true; }  // the reduction has failed: nothing is planned any more

 private:
  void plan();
  void send_plan();
  void tune(std::uint64_t bytes);
  void end_closed_ranks();
  NegotiationPlan last_plan() const;
  template <class F>
  void after(std::chrono::nanoseconds wait, F f);
  void watch_stalls();
  void look_at_stalls();
  std::vector<std::string> overdue(rpc::Clock::time_point now, std::chrono::nanoseconds limit) const;

  const std::shared_ptr<rpc::Loop> loop_;
  const int ranks_;
  const NegotiationOptions options_;
  const std::uint64_t max_fused_request_;
  const Deliver deliver_;
  const Log log_;

  ReductionPlanner planner_;
  FusionSettings fusion_;
  bool planning_ = false, watching_ = false;  // a timer is set
  bool over_ = false;
  std::size_t in_flight_ = 0;  // launches of rank 0
  std::set<int> ended_;        // ranks that get no further plan
  std::optional<FusionTuner> tuner_;
  std::optional<rpc::Clock::time_point> window_began_;
  std::uint64_t window_bytes_ = 0;
};

}  // namespace weft::data_parallel

// BucketReductions: the reductions of the buckets of a plan in one backward.
//
// A bucket waits for its gradients, is launched or skipped, is in flight, and is reduced. Buckets are
// launched or skipped in the order of the plan. A launch starts the first step of a reduction. The further
// steps, which some hooks have, start in wait(). Owned by a Reducer, which decides when to launch. Not
// thread-safe.
#pragma once

#include <weft/parallel/data_parallel/internal/gradient_buckets.h>
#include <weft/parallel/data_parallel/iteration_stats.h>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace weft::data_parallel {

class BucketReductions {
 public:
  // When a reduction started or ended.
  using Time = std::chrono::steady_clock::time_point;

  // buckets and hook must live until the backward has completed. hook: null for an all-reduce.
  BucketReductions(GradientBuckets& buckets, collectives::Group group, CommunicationHook* hook)
      : buckets_(&buckets), group_(std::move(group)), hook_(hook), states_(buckets.size()) {}

  // The bucket waits for one more gradient. Call it before the first launch.
  void expect(std::size_t bucket) { ++states_[bucket].missing; }
  // A gradient of the bucket is ready. expected: true if the bucket waits for this gradient (expect()).
  void add(std::size_t bucket, std::size_t parameter, bool expected);

  std::size_t next() const { return next_; }  // the next bucket to launch or skip; size of the plan: none
  // next_is_complete(): the next bucket waits for no gradient. skip_next(): this backward does not reduce it.
  bool all_launched() const { return next_ == states_.size(); }
  bool next_is_complete() const { return states_[next_].missing == 0; }
  void skip_next() { states_[next_++].skipped = true; }
  // Starts the reduction of the next bucket. Call it after the last write to the bucket. sparse: the gradient
  // that this rank contributes to a sparse bucket.
  void launch_next(const at::Tensor& sparse);

  // Whether skip_next() was called for the bucket.
  bool is_skipped(std::size_t bucket) const { return states_[bucket].skipped; }
  // Whether the first step of a bucket that is in flight is complete.
  bool is_reduced(std::size_t bucket) const;
  // Takes the result of a bucket for which is_reduced() is true. Throws its error, with the names of the
  // bucket's parameters.
  void take(std::size_t bucket);
  // Blocks until no bucket is in flight, also after a failure: nothing then writes to gradients any more.
  // Throws the first error, as take() does. reduced: called for each bucket when its last step is complete;
  // not after an error.
  void wait(const std::function<void(std::size_t bucket)>& reduced);

  // Adds the buckets to the stats of this backward, after wait().
  void note(Time began_at, IterationStats& stats) const;

 private:
  struct State {
    std::size_t missing = 0;            // gradients
    Time ready_at;                      // the time of the latest gradient so far
    std::size_t late = 0;               // the parameter whose gradient had the longest delay
    std::chrono::nanoseconds delay{0};  // the time since the gradient before it
    bool skipped = false;
    Time launched_at;
    std::shared_ptr<Time> reduced_at = {};  // written before `in_flight` completes
    int step = 0;                           // the next step to start
    std::optional<rpc::Future<void>> in_flight = {};
  };
  void run_step(std::size_t bucket, const at::Tensor& sparse = {});

  GradientBuckets* const buckets_;
  const collectives::Group group_;
  CommunicationHook* const hook_;
  std::vector<State> states_;  // by bucket
  std::size_t next_ = 0;
};

}  // namespace weft::data_parallel

// ReductionTimeline: the spans of the requests of a NegotiatedReduction, in the agent's tracer.
//
// A request has a span "all_reduce NAME" with three parts: NEGOTIATE until its plan arrives, FUSE while
// tensors are copied together, ALLREDUCE for the collective. Without a tracer nothing is recorded.
// Thread-safe.
#pragma once

#include <weft/rpc/trace/tracer.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>

namespace weft::data_parallel {

class ReductionTimeline {
 public:
  // The times of one request, by the tracer's clock. 0: the request has not reached this time.
  struct Times {
    std::int64_t made = 0, planned = 0, fused = 0;
  };

  explicit ReductionTimeline(std::shared_ptr<rpc::Tracer> tracer) : tracer_(std::move(tracer)) {}

  std::int64_t now() const { return tracer_ == nullptr ? 0 : tracer_->now(); }
  // Records a request that completes now. error: null if it succeeded.
  void add(const std::string& name, const Times& times, std::uint64_t bytes,
           const std::exception_ptr& error) const;

 private:
  const std::shared_ptr<rpc::Tracer> tracer_;  // may be null
};

}  // namespace weft::data_parallel

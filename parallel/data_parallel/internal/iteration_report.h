// IterationReport: reports the iterations of a replica as metrics, trace spans and log lines.
//
//   metrics   data_parallel.iterations, .bytes, .backward_us, .waited_us, .communication_us, .overlapped_us:
//             sums over the replicas of the agent (docs/observability.md)
//   trace     if the agent has a tracer: a span "backward" with a child span "bucket N" for each reduction
//   log       a warning that names a parameter whose gradient delays a bucket in each iteration
//
// Not thread-safe.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/data_parallel/iteration_stats.h>

#include <memory>
#include <string>
#include <vector>

namespace weft::data_parallel {

class IterationReport {
 public:
  // names: of the parameters, by index.
  explicit IterationReport(std::vector<std::string> names) : names_(std::move(names)) {}

  // age: the time since the start of backward.
  void add(const collectives::Group& group, const IterationStats& stats, std::chrono::nanoseconds age);

 private:
  const std::vector<std::string> names_;
  LateGradients late_;
};

}  // namespace weft::data_parallel

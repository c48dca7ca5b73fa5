// IterationStats: the durations of one iteration of data parallel training on one rank, and functions that
// evaluate them.
#pragma once

#include <weft/rpc/core/export.h>

#include <chrono>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {

// Times count from the first node of backward.
struct BucketStats {
  std::size_t index = 0;
  std::size_t bytes = 0;                 // 0: a sparse gradient
  std::string dtype = {};                // of the gradients
  std::size_t late = 0;                  // the parameter for whose gradient the bucket waited longest
  std::chrono::nanoseconds delay{0};     // from the bucket's previous gradient to that of `late`
  std::chrono::nanoseconds launched{0};  // start of the reduction
  std::chrono::nanoseconds reduced{0};   // end of the reduction
};

struct IterationStats {
  std::size_t iteration = 0;  // from 1
  std::chrono::nanoseconds forward{0};
  std::chrono::nanoseconds backward{0};  // from its first node until its last
  std::chrono::nanoseconds waited{0};    // for buckets, after the last node
  std::size_t skipped = 0;               // buckets that no rank reached
  std::vector<BucketStats> buckets;      // the reduced buckets
  std::vector<std::size_t> order;        // parameters in the order in which gradients became ready
  std::string hook;                      // CommunicationHook::name(); "all_reduce" without a hook
  // In all iterations so far, each parameter got as many gradients on this rank as in the first iteration:
  // the program could use Options::static_graph.
  bool is_static = true;

  std::size_t bytes() const;                       // of all buckets
  std::chrono::nanoseconds communication() const;  // while at least one bucket was in flight
  std::chrono::nanoseconds overlapped() const;     // the part of communication() before backward ended
};

// One line for the iteration and one for each bucket. names: of the parameters, by index.
WEFT_EXPORT std::string to_table(const IterationStats& stats, const std::vector<std::string>& names);

// Finds a parameter whose gradient delays a bucket in each iteration. A value, for one rank.
class WEFT_EXPORT LateGradients {
 public:
  // Indices of the parameter and of its bucket.
  struct Late {
    std::size_t parameter = 0, bucket = 0;
    std::chrono::nanoseconds delay{0};  // in the last iteration
  };
  // Returns a parameter for whose gradient a bucket has waited longest in `iterations` iterations in a row,
  // each time for at least min_delay and for more than half of the duration of backward. Each parameter is
  // returned once.
  std::optional<Late> add(const IterationStats& stats);

  // The thresholds of add().
  static constexpr std::size_t iterations = 10;
  static constexpr std::chrono::milliseconds min_delay{2};

 private:
  struct Streak {
    std::size_t parameter = 0, length = 0;
  };
  std::vector<Streak> streaks_;         // by bucket
  std::vector<std::size_t> announced_;  // parameters
};

}  // namespace weft::data_parallel

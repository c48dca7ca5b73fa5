// run: computes the times of a schedule without executing it. Every rank starts its actions in order, each as
// early as it can; messages of one direction between two ranks follow each other. Nodes complete in an order
// that respects all dependencies.
#pragma once

#include <weft/parallel/schedule/internal/dependencies.h>

#include <string>
#include <vector>

namespace weft::schedule {

struct Interval {
  double start = 0, finish = 0;
};

struct Run {
  std::vector<Interval> intervals;        // by node; those of step k begin at k * nodes()
  std::vector<Dependencies::Node> order;  // in the order of starts; numbered as the intervals are
};

// durations: by node. The steps follow each other on each rank without a barrier between ranks.
// invalid_argument: a deadlock, with the cycle of nodes that wait for each other.
Run run(const Dependencies& dependencies, const std::vector<double>& durations, int steps,
        const std::string& operation);

}  // namespace weft::schedule

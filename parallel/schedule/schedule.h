// Schedule: the actions of every rank of a pipeline in one step, in order. Data only; the executors run it.
//
// The passes are pure functions from schedules to schedules or to findings: generators.h makes schedules,
// text.h loads and saves them, validate.h checks them, lowering.h and communication.h add actions, liveness.h
// and simulate.h predict memory and time, draw.h draws. All of them throw rpc::Error with invalid_argument.
// Thread-safety: values.
#pragma once

#include <weft/parallel/schedule/action.h>

#include <vector>

namespace weft::schedule {

struct Schedule {
  int microbatches = 0;
  std::vector<std::vector<Action>> ranks;  // each rank's actions, in the order in which it starts them
  // The ranks of each stage. A stage has several if it is replicated: replica i mod n computes micro-batch i.
  std::vector<std::vector<int>> placement;
  // Between stages, ascending by (from, to), from < to.
  std::vector<Edge> edges;

  bool operator==(const Schedule&) const = default;

  // The number of stages; the rank that computes a micro-batch of a stage.
  int stages() const { return static_cast<int>(placement.size()); }
  int rank_of(int stage, int microbatch) const {
    const std::vector<int>& replicas = placement[static_cast<std::size_t>(stage)];
    return replicas[static_cast<std::size_t>(microbatch) % replicas.size()];
  }
};

// The edges of a model without skip connections: from each stage to the next.
WEFT_EXPORT std::vector<Edge> chain(int stages);

// Placements of ranks × chunks stages. Looped: stage s on rank s mod ranks. V: two chunks; the first goes
// from rank 0 to the last rank, the second back to rank 0.
WEFT_EXPORT std::vector<std::vector<int>> looped_placement(int ranks, int chunks);
WEFT_EXPORT std::vector<std::vector<int>> v_placement(int ranks);

}  // namespace weft::schedule

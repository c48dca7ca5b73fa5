// Plan: assigns the stages of a partition to ranks. A rank has one stage, or one replica of a stage, or none.
//
// schedule_of() and costs_of() return the input for the simulator and the pictures of parallel/schedule/.
// Pure functions. Errors: rpc::Error with the kind invalid_argument. Thread-safety: values.
#pragma once

#include <weft/parallel/partition/partition.h>
#include <weft/parallel/schedule/schedule.h>
#include <weft/parallel/schedule/simulate.h>

#include <cstddef>
#include <optional>
#include <type_traits>
#include <vector>

namespace weft::partition {

// The stage of a rank. nullopt: the partition leaves this rank idle. invalid_argument: a negative rank.
WEFT_EXPORT std::optional<std::size_t> stage_on(const Partition& partition, int rank);

// Makes the layers of the rank's own stage, in topological order, and no others: calls make(layer), with an
// index into the profile, for each of them. Empty if the partition leaves the rank idle.
template <class Make>
auto make_layers(const Partition& partition, int rank, Make&& make) {
  std::vector<std::decay_t<std::invoke_result_t<Make&, std::size_t>>> made;
  if (const auto stage = stage_on(partition, rank))
    for (const std::size_t layer : partition.stages[*stage].layers) made.push_back(make(layer));
  return made;
}

// Pairs of stages in ascending order. The second stage of each pair reads outputs of the first; skip
// connections are included.
WEFT_EXPORT std::vector<schedule::Edge> edges_of(const Profile& profile, const Partition& partition);

// PipeDream's schedule of `microbatches` micro-batches over the ranks of the partition, with edges_of(). A
// rank that the partition leaves idle has no actions. invalid_argument: microbatches below 1.
WEFT_EXPORT schedule::Schedule schedule_of(const Profile& profile, const Partition& partition,
                                           int microbatches);

// Seconds and bytes of activations of the stages. PipeDream's schedule has full backwards: all of their time
// is in StageCost::input_gradient. Messages and reductions take no time.
WEFT_EXPORT schedule::Costs costs_of(const Partition& partition);

}  // namespace weft::partition

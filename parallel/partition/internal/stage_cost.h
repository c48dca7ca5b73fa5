// StageCost: the formulas of Objective (pipedream.h) at one level of the machine. Immutable.
#pragma once

#include <weft/parallel/partition/pipedream.h>

#include <algorithm>
#include <cstddef>

namespace weft::partition {

class StageCost {
 public:
  // units_below: the units of the level below in one unit of this level; 1 at the lowest level.
  StageCost(const Level& level, std::size_t units_below, const PipeDreamOptions& options)
      : paper_(options.objective == Objective::pipedream_paper),
        counts_activations_(options.activation_compression.has_value()),
        bandwidth_(level.bytes_per_second),
        units_below_(static_cast<double>(units_below)),
        compression_(options.activation_compression.value_or(1)) {}

  // The time of a stage per micro-batch, in seconds. unit_seconds: its time on one unit. first: true if the
  // stage is the first at this level.
  double stage(double unit_seconds, double parameter_bytes, std::size_t replicas, bool first) const {
    const auto m = static_cast<double>(replicas);
    if (paper_) return std::max(unit_seconds, 2 * (m - 1) * parameter_bytes / bandwidth_) / m;
    const double synchronization = 4 * (m - 1) * parameter_bytes / (bandwidth_ * m);
    return (unit_seconds + (first ? synchronization / units_below_ : synchronization)) / m;
  }

  // The time of a stage's transfers per micro-batch, in seconds. The stage must not be the first.
  // output_bytes: 0 for the last stage.
  double transfer(double input_bytes, double output_bytes, std::size_t replicas) const {
    if (paper_) return 2 * input_bytes / bandwidth_ / compression_;
    if (!counts_activations_) return 0;
    const double bytes = std::max(input_bytes, output_bytes);
    return 2 * bytes / (bandwidth_ * static_cast<double>(replicas)) / compression_;
  }

 private:
  bool paper_, counts_activations_;
  double bandwidth_, units_below_, compression_;
};

}  // namespace weft::partition

// PipeDreamSolver: the dynamic program of pipedream(), over the states of a graph and the levels of a
// machine.
//
// The .cc file explains the recursion. pipedream() creates a solver for each call. Not thread-safe.
#pragma once

#include <weft/parallel/partition/internal/stage_cost.h>
#include <weft/parallel/partition/internal/state_space.h>
#include <weft/parallel/partition/pipedream.h>

#include <cstddef>
#include <limits>
#include <map>
#include <span>
#include <utility>
#include <vector>

namespace weft::partition {

class PipeDreamSolver {
 public:
  PipeDreamSolver(const StateSpace& states, std::span<const Level> levels, const PipeDreamOptions& options);

  struct Run {  // a stage on workers: the layers between two states
    std::size_t begin = 0, end = 0;
    std::vector<std::size_t> replicas;  // by level, innermost first
    std::vector<int> ranks;             // of its workers
  };
  struct Solution {
    double seconds = 0;  // infinite: no partition satisfies the options
    std::vector<Run> runs;
  };
  Solution solve();

 private:
  static constexpr double impossible = std::numeric_limits<double>::infinity();

  // Describes the best way to run the layers from a start to a later state on a number of units. A Cell holds
  // only the last stage.
  struct Cell {
    double seconds = impossible;   // the time of all these layers
    std::size_t begin = 0;         // state at which the last stage begins
    std::size_t units_before = 0;  // units of the earlier stages
    std::size_t replicas = 0;      // of the last stage
  };
  // The cells of one start: one for each state from the start on and each number of units.
  class Row {
   public:
    Row(std::size_t start, std::size_t states, std::size_t units)
        : start_(start), stride_(units + 1), cells_((states - start) * stride_) {}
    Cell& at(std::size_t state, std::size_t units) { return cells_[(state - start_) * stride_ + units]; }

   private:
    std::size_t start_, stride_;
    std::vector<Cell> cells_;
  };
  // Seconds of the best way to run the layers between two states on all units of a level, by start and end.
  using Table = std::vector<std::vector<double>>;
  // The replicas of a stage, each on one unit, and the workers of the stages after it.
  struct Placement {
    std::size_t replicas = 0;
    double workers_after = 0;  // divided by the replicas
    // The memory of a unit for the parameters and activations of one micro-batch: exact at the lowest level,
    // an upper bound at the other levels.
    double max_bytes = impossible;
    const Table* table = nullptr;  // of the level below; null at the lowest
  };

  Placement placement(std::size_t level, std::size_t units, std::size_t replicas, double workers_after);
  double unit_seconds(const Placement& placement, std::size_t begin, std::size_t end) const;
  Row row(std::size_t level, std::size_t start, double workers_after);
  const Table& table(std::size_t level, double workers_after);
  // Appends the stages for the layers between two states. outer: the replicas at the levels above; its ranks
  // are the first workers of the machines that run these layers.
  void append_runs(std::size_t level, std::size_t begin, std::size_t end, double workers_after,
                   const Run& outer, std::vector<Run>& runs);

  const StateSpace& states_;
  std::span<const Level> levels_;
  const PipeDreamOptions& options_;
  std::vector<double> seconds_, bytes_;    // by state: of all its layers
  std::vector<double> max_bytes_;          // by state: the maximum of bytes_ up to it
  std::vector<double> transferred_;        // by state: bytes that its layers send to the others
  std::vector<StageCost> costs_;           // by level
  std::vector<std::size_t> unit_workers_;  // by level: workers of one unit
  std::map<std::pair<std::size_t, double>, Table> tables_;
};

}  // namespace weft::partition

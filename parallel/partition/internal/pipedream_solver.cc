// The recursion, at each level: the best time from a start to `end` on m units is the least over all earlier
// states k and all r < m of
//   max(best time from the start to k on m - r units, time of a stage from k to `end` on r units),
// or that of one stage on m units. At the lowest level a unit computes the layers itself. At an upper level a
// unit is a whole machine of the level below, with the time that the table of that level has for these
// layers.
//
// States are sorted by compute time. No time is below the compute time of the layers divided by the number
// of workers. Therefore, for a given r, only a window of states k is considered: the layers before k must
// fit into the best time so far, and so must the layers after k, which must also fit into memory. The choice
// for the state before `end` is tried first, because a good best time makes the windows narrow. Choices are
// not kept for all starts: append_runs() computes a row again.
#include <weft/parallel/partition/internal/pipedream_solver.h>

#include <algorithm>
#include <cmath>

namespace weft::partition {

PipeDreamSolver::PipeDreamSolver(const StateSpace& states, std::span<const Level> levels,
                                 const PipeDreamOptions& options)
    : states_(states), levels_(levels), options_(options) {
  for (std::size_t state = 0; state < states.size(); ++state) {
    seconds_.push_back(states.seconds(state));
    bytes_.push_back(states.activation_bytes(state) + states.parameter_bytes(state));
    max_bytes_.push_back(state == 0 ? 0 : std::max(max_bytes_.back(), bytes_.back()));
    transferred_.push_back(options.objective == Objective::pipedream_code ? states.antichain_bytes(state)
                                                                          : states.crossing_bytes(state));
  }
  std::size_t units_below = 1, workers = 1;
  for (const Level& level : levels) {
    costs_.emplace_back(level, units_below, options);
    unit_workers_.push_back(workers);
    units_below = level.units;
    workers *= level.units;
  }
}

PipeDreamSolver::Solution PipeDreamSolver::solve() {
  const std::size_t top = levels_.size() - 1, last = states_.size() - 1;
  Solution solution;
  solution.seconds = row(top, 0, 0).at(last, levels_[top].units).seconds;
  if (solution.seconds != impossible) append_runs(top, 0, last, 0, {0, last, {}, {0}}, solution.runs);
  return solution;
}

// Memory depends on the micro-batches in flight, whose number depends on the workers that follow. Without a
// limit the tables are the same for any number of these workers.
PipeDreamSolver::Placement PipeDreamSolver::placement(std::size_t level, std::size_t units,
                                                      std::size_t replicas, double workers_after) {
  Placement made{replicas};
  if (options_.memory_bytes) {
    const auto later = static_cast<double>((levels_[level].units - units) * unit_workers_[level]);
    made.workers_after = (later + workers_after) / static_cast<double>(replicas);
    constexpr double rounding = 1e-9;
    made.max_bytes = level == 0 ? *options_.memory_bytes / std::ceil(1 + made.workers_after - rounding)
                                : *options_.memory_bytes * static_cast<double>(unit_workers_[level]);
  }
  if (level > 0) made.table = &table(level - 1, made.workers_after);
  return made;
}

double PipeDreamSolver::unit_seconds(const Placement& placement, std::size_t begin, std::size_t end) const {
  if (placement.table != nullptr) return (*placement.table)[begin][end - begin];
  if (bytes_[end] - bytes_[begin] > placement.max_bytes) return impossible;
  return seconds_[end] - seconds_[begin];
}

PipeDreamSolver::Row PipeDreamSolver::row(std::size_t level, std::size_t start, double workers_after) {
  const std::size_t units = levels_[level].units, last = states_.size() - 1;
  const StageCost& cost = costs_[level];
  std::vector<std::vector<Placement>> placements(units + 1);  // by units up to the stage, and its replicas
  for (std::size_t m = 1; m <= units; ++m)
    for (std::size_t r = 0; r <= (options_.straight ? 1 : m); ++r)
      placements[m].push_back(r == 0 ? Placement{} : placement(level, m, r, workers_after));

  Row row(start, states_.size(), units);
  const double start_seconds = seconds_[start];
  std::size_t previous = start;                        // the last state that contains the start
  std::vector<std::size_t> reached(units + 1, start);  // by units: the last state with a possible cell
  for (std::size_t end = start + 1; end <= last; ++end) {
    if (!states_.contains(end, start)) continue;
    const double seconds = seconds_[end];
    const double parameters = states_.parameter_bytes(end);
    const double output = end == last ? 0 : transferred_[end];
    for (std::size_t m = 1; m <= units; ++m) {
      Cell& best = row.at(end, m);
      if (!options_.straight || m == 1)
        best = {cost.stage(unit_seconds(placements[m][m], start, end),
                           parameters - states_.parameter_bytes(start), m, true),
                start, 0, m};
      if (options_.fewer_workers && m > 1 && row.at(end, m - 1).seconds < best.seconds)
        best = row.at(end, m - 1);
      const auto consider = [&](std::size_t k, std::size_t r) {
        const double before = row.at(k, m - r).seconds;
        if (before >= best.seconds) return;
        const double stage = cost.stage(unit_seconds(placements[m][r], k, end),
                                        parameters - states_.parameter_bytes(k), r, false);
        if (stage >= best.seconds) return;
        const double time = std::max({before, stage, cost.transfer(transferred_[k], output, r)});
        if (time < best.seconds && states_.contains(end, k)) best = {time, k, m - r, r};
      };
      if (previous > start)
        if (const Cell& guess = row.at(previous, m); guess.begin > start && guess.replicas < m)
          consider(guess.begin, guess.replicas);
      const std::size_t max_replicas = options_.straight ? std::min<std::size_t>(m - 1, 1) : m - 1;
      for (std::size_t r = 1; r <= max_replicas; ++r) {
        const auto workers = static_cast<double>(r * unit_workers_[level]);
        const auto workers_before = static_cast<double>((m - r) * unit_workers_[level]);
        const double latest = start_seconds + best.seconds * workers_before;
        const auto from = seconds_.begin() + static_cast<std::ptrdiff_t>(start);
        const auto to = seconds_.begin() + static_cast<std::ptrdiff_t>(end);
        const auto after = static_cast<std::size_t>(std::upper_bound(from, to, latest) - seconds_.begin());
        const double max_bytes = placements[m][r].max_bytes;
        for (std::size_t k = std::min(after - 1, reached[m - r]);
             k > start && seconds - seconds_[k] < best.seconds * workers &&
             bytes_[end] - max_bytes_[k] <= max_bytes;
             --k)
          consider(k, r);
      }
      if (best.seconds != impossible) reached[m] = end;
    }
    previous = end;
  }
  return row;
}

const PipeDreamSolver::Table& PipeDreamSolver::table(std::size_t level, double workers_after) {
  const auto [place, added] = tables_.try_emplace({level, workers_after});
  if (!added) return place->second;
  Table& table = place->second;  // valid while the levels below add tables
  for (std::size_t start = 0; start < states_.size(); ++start) {
    Row of_start = row(level, start, workers_after);
    std::vector<double>& seconds = table.emplace_back();
    for (std::size_t end = start; end < states_.size(); ++end)
      seconds.push_back(of_start.at(end, levels_[level].units).seconds);
  }
  return table;
}

void PipeDreamSolver::append_runs(std::size_t level, std::size_t begin, std::size_t end, double workers_after,
                                  const Run& outer, std::vector<Run>& runs) {
  Row of_begin = row(level, begin, workers_after);
  std::vector<std::pair<Cell, std::size_t>> stages;  // from the last to the first, and where each ends
  for (std::size_t state = end, units = levels_[level].units; state != begin;) {
    const Cell cell = of_begin.at(state, units);
    stages.emplace_back(cell, state);
    state = cell.begin;
    units = cell.units_before;
  }
  for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
    const auto& [cell, stage_end] = *stage;
    const std::size_t units = cell.units_before + cell.replicas;
    Run run{cell.begin, stage_end, {cell.replicas}, {}};
    run.replicas.insert(run.replicas.end(), outer.replicas.begin(), outer.replicas.end());
    for (const int first : outer.ranks)
      for (std::size_t unit = cell.units_before; unit < units; ++unit)
        run.ranks.push_back(first + static_cast<int>(unit * unit_workers_[level]));
    if (level == 0)
      runs.push_back(std::move(run));
    else
      append_runs(level - 1, cell.begin, stage_end,
                  placement(level, units, cell.replicas, workers_after).workers_after, run, runs);
  }
}

}  // namespace weft::partition

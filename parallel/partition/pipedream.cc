#include <weft/parallel/partition/pipedream.h>

#include <weft/parallel/partition/internal/pipedream_solver.h>
#include <weft/parallel/partition/internal/state_space.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

namespace weft::partition {
namespace {

using rpc::ErrorKind;

void check_options(std::span<const Level> levels, const PipeDreamOptions& options) {
  const auto refuse = [](const std::string& why) {
    throw rpc::Error(ErrorKind::invalid_argument, "pipedream: " + why);
  };
  const auto positive = [&](const std::string& what, double value) {
    if (!std::isfinite(value) || value <= 0)
      refuse("the " + what + " is " + std::to_string(value) + ", expected a finite number above 0");
  };
  if (levels.empty()) refuse("the machine has no levels, expected at least one");
  for (const Level& level : levels) {
    if (level.units == 0) refuse("a level of the machine has 0 units, expected at least 1");
    positive("bandwidth", level.bytes_per_second);
  }
  if (options.activation_compression) positive("compression of activations", *options.activation_compression);
  if (options.memory_bytes) positive("memory of a worker", *options.memory_bytes);
}

std::size_t usual_max_cuts(std::span<const Level> levels, const PipeDreamOptions& options) {
  if (levels.size() > 1) return options.memory_bytes ? 1'500 : 2'500;
  const bool transfers = options.objective == Objective::pipedream_paper || options.activation_compression;
  return transfers ? 2'500 : 20'000;
}

// Throws not_found. The error names the constraints, and those that can be relaxed.
[[noreturn]] void refuse_all(std::size_t layers, std::size_t workers, const PipeDreamOptions& options) {
  std::string text = "pipedream: no partition of " + std::to_string(layers) + " layers uses " +
                     (options.fewer_workers ? "at most " : "exactly ") + std::to_string(workers) + " workers";
  if (options.straight) text += ", one a stage";
  if (options.memory_bytes)
    text +=
        ", and fits into " + std::to_string(std::llround(*options.memory_bytes)) + " bytes of memory each";
  text += ": ";
  if (options.memory_bytes) text += "allow more memory, or profile smaller micro-batches";
  if (options.straight && !options.fewer_workers)
    text += std::string(options.memory_bytes ? ", or " : "") + "allow fewer workers (fewer_workers)";
  throw rpc::Error(ErrorKind::not_found, text);
}

// Adds the layers that are in no state: inputs to the first stage, and unread items to the last stage of
// their sources.
void add_left_out(const Profile& profile, const std::vector<std::size_t>& order,
                  std::vector<std::vector<std::size_t>>& stages) {
  constexpr auto none = static_cast<std::size_t>(-1);
  std::vector<std::size_t> stage_of_layer(profile.layers.size(), none), place(profile.layers.size());
  for (std::size_t stage = 0; stage < stages.size(); ++stage)
    for (const std::size_t layer : stages[stage]) stage_of_layer[layer] = stage;
  for (std::size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  for (const std::size_t layer : order) {
    if (stage_of_layer[layer] != none) continue;
    std::size_t stage = 0;
    for (const Edge& edge : profile.edges)
      if (edge.to == layer) stage = std::max(stage, stage_of_layer[edge.from]);
    stage_of_layer[layer] = stage;
    stages[stage].push_back(layer);
  }
  for (auto& layers : stages)
    std::sort(layers.begin(), layers.end(),
              [&](std::size_t a, std::size_t b) { return place[a] < place[b]; });
}

}  // namespace

std::string_view to_string(Objective objective) {
  return objective == Objective::pipedream_code ? "pipedream-code" : "pipedream-paper";
}

Objective objective_of(std::string_view name) {
  for (const Objective objective : {Objective::pipedream_code, Objective::pipedream_paper})
    if (to_string(objective) == name) return objective;
  throw rpc::Error(ErrorKind::invalid_argument, "objective: found '" + std::string(name) +
                                                    "', expected 'pipedream-code' or 'pipedream-paper'");
}

Partition pipedream(const Profile& profile, std::span<const Level> levels, const PipeDreamOptions& options) {
  check_options(levels, options);
  const StateSpace states(profile, options.cuts, options.max_cuts.value_or(usual_max_cuts(levels, options)));
  std::size_t workers = 1, units_below = 1;
  for (const Level& level : levels) workers *= level.units;
  const auto solution = PipeDreamSolver(states, levels, options).solve();
  if (std::isinf(solution.seconds)) refuse_all(profile.layers.size(), workers, options);

  std::vector<std::vector<std::size_t>> stages;
  for (const auto& run : solution.runs) stages.push_back(states.layers_between(run.begin, run.end));
  add_left_out(profile, topological_order(profile), stages);
  Partition partition;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    partition.stages.push_back(stage_of(profile, std::move(stages[i])));
    partition.stages.back().replicas = solution.runs[i].replicas;
    partition.stages.back().ranks = solution.runs[i].ranks;
  }
  partition.cuts = states.cuts();
  partition.bottleneck_seconds = solution.seconds;
  const std::size_t all = states.size() - 1;
  partition.total_seconds = partition.data_parallel_seconds = states.seconds(all);
  for (const Level& level : levels) {
    partition.data_parallel_seconds =
        StageCost(level, units_below, options)
            .stage(partition.data_parallel_seconds, states.parameter_bytes(all), level.units, true);
    units_below = level.units;
  }
  return partition;
}

}  // namespace weft::partition

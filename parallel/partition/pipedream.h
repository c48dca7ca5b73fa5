// pipedream: the partition with the lowest predicted time per micro-batch, by PipeDream's dynamic program.
//
// D. Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP 2019). A stage
// may have replicas, which synchronize their gradients. The machine has levels, for example workers of a host
// and hosts of a cluster, each with a bandwidth. The dynamic program first finds the best partition of every
// possible stage over the workers of one host, and then the best partition of the model over hosts that run
// these stages. Branching graphs are cut at antichains. All workers are used, unless `fewer_workers` is set.
// A pure function.
//
// With Objective::pipedream_code the times equal those of PipeDream's optimizer_graph_hierarchical.py for
// graphs with one input. There are two differences. An upper level is given only stages whose layers are
// between two nested cuts. The memory limit counts the micro-batch that a stage computes and the workers of
// all levels.
#pragma once

#include <weft/parallel/partition/partition.h>

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace weft::partition {

// One level of the machine.
struct Level {
  std::size_t units = 1;          // workers of a host; at the next level hosts, and so on
  double bytes_per_second = 1e9;  // between two units
};

// The formula for the time of a stage with m replicas. T: its compute time, or at upper levels the bottleneck
// of one unit; W: bytes of parameters; B: bandwidth; a: bytes that cross a cut.
enum class Objective {
  // (T + 4 (m - 1) W / (m B)) / m. For the first stage at each level, the term of W is divided by the number
  // of units of the level below. Activations count only if a compression ratio r is given. A stage then takes
  // at least 2 a / (m B r), for the larger of its input and its output. In a graph with branches, `a` may
  // include outputs that do not cross the cut.
  pipedream_code,
  // max(T, 2 (m - 1) W / B) / m. A cut takes 2 a / (B r), and r is 1 if it is not given.
  pipedream_paper,
};

// Convert to and from "pipedream-code" and "pipedream-paper". objective_of() throws invalid_argument for
// other names.
WEFT_EXPORT std::string_view to_string(Objective objective);
WEFT_EXPORT Objective objective_of(std::string_view name);

// The objective of pipedream(), and its constraints.
struct PipeDreamOptions {
  Objective objective = Objective::pipedream_code;
  bool straight = false;                                        // no replicas: as many stages as workers
  bool fewer_workers = false;                                   // leave workers idle where that is faster
  std::optional<double> activation_compression = std::nullopt;  // uncompressed / compressed bytes
  // The memory of each worker. A replica keeps the parameters and activations of each micro-batch in flight.
  // The number of these micro-batches is the number of workers from its stage to the end, divided by the
  // replicas and rounded up. This number may include workers that fewer_workers leaves idle.
  std::optional<double> memory_bytes = std::nullopt;
  // nullopt: pipedream() uses the first of Cuts::all, Cuts::whole_branches and Cuts::in_order that has at
  // most max_cuts cuts.
  std::optional<Cuts> cuts = std::nullopt;
  // The maximum number of cuts for Cuts::all and whole_branches. The run time grows with its square. nullopt:
  // a number with which 16 workers take a few seconds: 1,500 with levels and a memory limit, 2,500 with
  // levels or transfers, otherwise 20,000.
  std::optional<std::size_t> max_cuts = std::nullopt;
};

// levels: innermost first, at least one. Inputs are in the first stage. invalid_argument: a profile that
// topological_order() rejects, no levels, no units, or a bandwidth, compression or memory that is not above
// 0. resource_exhausted: more cuts of the given kind than max_cuts. not_found: no partition satisfies the
// options.
WEFT_EXPORT Partition pipedream(const Profile& profile, std::span<const Level> levels,
                                const PipeDreamOptions& options = {});

}  // namespace weft::partition

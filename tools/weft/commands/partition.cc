#include <weft/parallel/partition/balance.h>
#include <weft/parallel/partition/pipedream.h>
#include <weft/parallel/partition/plan.h>
#include <weft/parallel/partition/profile_text.h>
#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/draw.h>
#include <weft/parallel/schedule/simulate.h>

#include <cstdio>
#include <map>

#include "tools/weft/command.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace partition_command {
namespace {

using partition::Partition;
using partition::Profile;

struct Options {
  std::string profile, output, svg, title;
  int microbatches = 8;
  std::vector<std::size_t> units, counts;
  std::vector<double> bandwidths;
  std::vector<std::string> first_layers;
  std::size_t stages = 0;
  std::string balance, cuts, objective{partition::to_string(partition::Objective::pipedream_code)};
  double compression = 0, memory = 0, parameter_copies = 2;  // 0: not given
  std::size_t max_cuts = 0;                                  // 0: not given
  partition::PipeDreamOptions pipedream;
};

const std::map<std::string, partition::Cuts> kinds_of_cuts = {
    {"all", partition::Cuts::all},
    {"whole-branches", partition::Cuts::whole_branches},
    {"in-order", partition::Cuts::in_order}};

Partition by_pipedream(const Options& options, const Profile& profile) {
  if (options.units.empty())
    throw UsageError("partition: expected -n WORKERS, or one of --stages, --balance, --cut and --count");
  if (!options.bandwidths.empty() && options.bandwidths.size() != options.units.size())
    throw UsageError("partition: -b has " + std::to_string(options.bandwidths.size()) +
                     " bandwidths, expected " + std::to_string(options.units.size()) +
                     ", one for each number of -n");
  std::vector<partition::Level> levels;
  for (std::size_t i = 0; i < options.units.size(); ++i) {
    levels.push_back({options.units[i]});
    if (!options.bandwidths.empty()) levels.back().bytes_per_second = options.bandwidths[i];
  }
  partition::PipeDreamOptions given = options.pipedream;
  given.objective = partition::objective_of(options.objective);
  if (options.compression > 0) given.activation_compression = options.compression;
  if (options.memory > 0) given.memory_bytes = options.memory;
  if (options.max_cuts > 0) given.max_cuts = options.max_cuts;
  if (!options.cuts.empty()) given.cuts = kinds_of_cuts.at(options.cuts);
  const Partition found = partition::pipedream(profile, levels, given);
  if (options.cuts.empty() && found.cuts != partition::Cuts::all)
    std::fprintf(
        stderr,
        "weft: the graph has too many cuts to try all of them: %s (--cuts and --max-cuts change this)\n",
        found.cuts == partition::Cuts::whole_branches ? "branches stay whole"
                                                      : "only cuts of the topological order are tried");
  return found;
}

Partition find(const Options& options, const Profile& profile) {
  if (!options.first_layers.empty()) return partition::cut_by_name(profile, options.first_layers);
  if (!options.counts.empty()) return partition::cut_by_count(profile, options.counts);
  if (options.balance.empty())
    return options.stages > 0 ? partition::cut_evenly(profile, options.stages)
                              : by_pipedream(options, profile);
  std::size_t stages = options.stages;
  if (stages == 0) {
    if (options.units.empty()) throw UsageError("partition: expected --stages N or -n N with --balance");
    stages = 1;
    for (const std::size_t units : options.units) stages *= units;
  }
  if (options.balance == "time") return partition::balance_by_time(profile, stages);
  if (options.balance == "size") return partition::balance_by_size(profile, stages, options.parameter_copies);
  return partition::balance_exactly(profile, stages);
}

// Draws PipeDream's schedule of the partition, simulated with the times of the stages.
std::string picture(const Options& options, const Profile& profile, const Partition& found) {
  const schedule::Schedule plan =
      schedule::place_communication(partition::schedule_of(profile, found, options.microbatches));
  const schedule::Prediction prediction = schedule::predict(plan, partition::costs_of(found));
  return schedule::svg(plan,
                       {{options.title.empty() ? options.profile : options.title, prediction.timeline}});
}

Exit run(const Options& options) {
  const Profile profile = partition::parse_profile(read_file(options.profile), options.profile);
  const Partition found = find(options, profile);
  std::printf("%s: %zu layers, %zu stages, %zu workers\n\n%s", printable(options.profile).c_str(),
              profile.layers.size(), found.stages.size(), found.workers(),
              printable(partition::to_text(profile, found)).c_str());
  if (!options.output.empty())
    write_file(options.output, partition::to_text(partition::with_stages(profile, found)));
  if (!options.svg.empty()) write_file(options.svg, picture(options, profile, found));
  return Exit::ok;
}

}  // namespace
}  // namespace partition_command

Command add_partition(CLI::App& program) {
  using namespace partition_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "partition", "Cut a profiled model into the stages of a pipeline; calls no agent");
  app->add_option("PROFILE", options->profile, "The profile: a file in the form of PipeDream's graph.txt")
      ->required();
  auto* workers = app->add_option("-n,--workers", options->units,
                                  "Number of workers, or numbers for each level of the machine, the "
                                  "innermost first: 4,2 is 4 workers on each of 2 hosts")
                      ->delimiter(',')
                      ->check(CLI::PositiveNumber);
  app->add_option("-b,--bandwidth", options->bandwidths, "Bytes per second at each level; by default 1e9")
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app->add_option("-o,--output", options->output, "Also write the profile with a stage_id for each layer")
      ->type_name("FILE");

  app->add_option("--svg", options->svg, "Draw the stages into this file, as PipeDream's schedule runs them")
      ->type_name("FILE");
  app->add_option("--microbatches", options->microbatches, "Number of micro-batches in the picture")
      ->type_name("M")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app->add_option("--title", options->title, "The title of the picture");

  const std::string dynamic = "PipeDream's dynamic program";
  app->add_option("--objective", options->objective, "Time of a stage: pipedream-code or pipedream-paper")
      ->check(CLI::IsMember({"pipedream-code", "pipedream-paper"}))
      ->type_name("NAME")
      ->capture_default_str()
      ->group(dynamic);
  app->add_flag("--straight", options->pipedream.straight, "No replicas: one stage on each worker")
      ->group(dynamic);
  app->add_flag("--fewer-workers", options->pipedream.fewer_workers,
                "Leave workers idle if that is faster, or if there are fewer layers")
      ->group(dynamic);
  app->add_option(
         "--compressed-activations", options->compression,
         "Divide the time of transfers by RATIO. pipedream-code counts transfers only with this option; "
         "1 counts them without compression")
      ->check(CLI::PositiveNumber)
      ->type_name("RATIO")
      ->group(dynamic);
  app->add_option("--memory", options->memory,
                  "Bytes of each worker, for parameters and activations of micro-batches in flight")
      ->check(CLI::PositiveNumber)
      ->type_name("BYTES")
      ->group(dynamic);
  app->add_option(
         "--cuts", options->cuts,
         "Where the graph may be cut: all, whole-branches or in-order (of the layers); by default the first "
         "of these that has at most --max-cuts")
      ->check(CLI::IsMember({"all", "whole-branches", "in-order"}))
      ->type_name("KIND")
      ->group(dynamic);
  app->add_option("--max-cuts", options->max_cuts,
                  "Maximum number of cuts; by default a number that takes a few seconds")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(dynamic);

  const std::string other = "Instead of the dynamic program";
  auto* stages = app->add_option("--stages", options->stages,
                                 "Number of stages, with equal numbers of layers or balanced by --balance")
                     ->check(CLI::PositiveNumber)
                     ->excludes(workers)
                     ->group(other);
  auto* balance =
      app->add_option("--balance", options->balance,
                      "time, size: torchgpipe's block partition; exact: the lowest possible bottleneck")
          ->check(CLI::IsMember({"time", "size", "exact"}))
          ->type_name("MEASURE")
          ->group(other);
  app->add_option("--parameter-copies", options->parameter_copies,
                  "For --balance size: copies of the parameters, including gradients and optimizer state")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(other);
  auto* cut =
      app->add_option("--cut", options->first_layers, "Layers at which stages begin, by name or description")
          ->type_name("LAYER")
          ->excludes(workers)
          ->excludes(stages)
          ->excludes(balance)
          ->group(other);
  app->add_option("--count", options->counts, "Numbers of layers of the stages")
      ->delimiter(',')
      ->type_name("LAYERS")
      ->excludes(workers)
      ->excludes(stages)
      ->excludes(balance)
      ->excludes(cut)
      ->group(other);
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool

#include <weft/parallel/partition/profile_text.h>
#include <weft/parallel/planner/planner.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <map>

#include "tools/weft/bytes.h"
#include "tools/weft/command.h"
#include "tools/weft/duration.h"
#include "tools/weft/json_text.h"
#include "tools/weft/method.h"
#include "tools/weft/plan_text.h"

namespace weft::tool {
namespace plan_command {
namespace {

struct Options {
  std::string profile, kept, hosts, memory, program = "./train";
  std::string bandwidth = "10GB", host_bandwidth = "1GB", latency = "10us", host_latency = "50us";
  std::vector<std::string> tensor_layers;
  planner::Model model;
  planner::Options search;
  int cores = 0;
  bool json = false;
};

// "4x8" is 4 hosts of 8 ranks, "8" one host.
void apply_hosts(const std::string& text, planner::Machine& machine) {
  const std::size_t mark = text.find('x');
  const std::string hosts = mark == std::string::npos ? "1" : text.substr(0, mark);
  const std::string ranks = mark == std::string::npos ? text : text.substr(mark + 1);
  const auto read = [](const std::string& digits, int& into) {
    const char* end = digits.data() + digits.size();
    const auto [read_to, error] = std::from_chars(digits.data(), end, into);
    return error == std::errc{} && read_to == end && into > 0;
  };
  if (!read(hosts, machine.hosts) || !read(ranks, machine.ranks_per_host))
    throw UsageError("plan: --hosts is '" + printable(text) + "', expected HOSTSxRANKS, such as 4x8");
}

double seconds(const std::string& duration) {
  return std::chrono::duration<double>(parse_duration(duration)).count();
}

planner::Machine machine_of(const Options& options) {
  planner::Machine machine;
  apply_hosts(options.hosts, machine);
  machine.cores_per_host = options.cores;
  if (!options.memory.empty()) machine.memory_bytes = parse_bytes(options.memory);
  machine.bytes_per_second = parse_bytes(options.bandwidth);
  machine.host_bytes_per_second = parse_bytes(options.host_bandwidth);
  machine.latency = seconds(options.latency);
  machine.host_latency = seconds(options.host_latency);
  return machine;
}

std::vector<bool> split_layers(const Options& options, const partition::Profile& profile) {
  std::vector<bool> split(profile.layers.size());
  for (const std::string& pattern : options.tensor_layers) {
    bool any = false;
    for (std::size_t i = 0; i < split.size(); ++i)
      if (matches(profile.layers[i].name, pattern) || matches(profile.layers[i].description, pattern))
        split[i] = any = true;
    if (!any)
      throw UsageError("plan: no layer of " + printable(options.profile) + " matches --tensor-layers " +
                       printable(pattern));
  }
  return split;
}

std::vector<double> kept_bytes(const Options& options, const partition::Profile& profile) {
  if (options.kept.empty()) return {};
  std::map<std::string, double> known;
  for (const partition::Layer& layer : partition::parse_profile(read_file(options.kept), options.kept).layers)
    known[layer.name] = layer.activation_bytes;
  std::vector<double> kept;
  for (const partition::Layer& layer : profile.layers) {
    const auto found = known.find(layer.name);
    if (found == known.end())
      throw UsageError("plan: " + printable(options.kept) + " has no layer '" + printable(layer.name) +
                       "', expected those of " + printable(options.profile));
    kept.push_back(found->second);
  }
  return kept;
}

Exit run(const Options& options) {
  PlannedJob job{options.profile, options.model, machine_of(options), options.program};
  job.model.profile = partition::parse_profile(read_file(options.profile), options.profile);
  job.model.split = split_layers(options, job.model.profile);
  job.model.kept_bytes = kept_bytes(options, job.model.profile);
  const planner::Plans plans = planner::plan(job.model, job.machine, options.search);
  if (options.json)
    std::puts(on_one_line(json_of(job, plans)).c_str());
  else
    std::fputs(printable(plan_text(job, plans)).c_str(), stdout);
  if (!plans.plans.empty()) return Exit::ok;
  std::fprintf(stderr, "weft: no factorization is possible\n");
  return Exit::failed;
}

}  // namespace
}  // namespace plan_command

Command add_plan(CLI::App& program) {
  using namespace plan_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "plan", "Split ranks into data, pipeline and tensor parallel for a profiled model; calls no agent");
  app->add_option("PROFILE", options->profile, "The profile: a file in the form of PipeDream's graph.txt")
      ->required();
  app->add_option("--kept", options->kept,
                  "The same profile, with the bytes that layers keep for backward as their activations")
      ->type_name("FILE");
  app->add_flag("--json", options->json, "Print one line of JSON");
  app->add_option("--program", options->program, "The program of the printed command")->capture_default_str();

  const std::string machine = "Machine";
  const auto size = [&](const char* name, std::string& into, const char* what) {
    return app->add_option(name, into, what)->type_name("BYTES")->group(machine);
  };
  const auto time = [&](const char* name, std::string& into, const char* what) {
    app->add_option(name, into, what)->type_name("TIME")->capture_default_str()->group(machine);
  };
  app->add_option("--hosts", options->hosts, "4x8 is 4 hosts of 8 ranks, 8 is one host")
      ->type_name("HOSTSxRANKS")
      ->required()
      ->group(machine);
  app->add_option("--cores", options->cores,
                  "Processors of a host, which its ranks share; by default one for each rank")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(machine);
  size("--memory", options->memory, "Memory of each rank: 40GiB, 80e9; by default unlimited");
  size("--bandwidth", options->bandwidth, "Bytes per second between two ranks of a host")
      ->capture_default_str();
  size("--host-bandwidth", options->host_bandwidth, "Bytes per second between a host and all other hosts")
      ->capture_default_str();
  time("--latency", options->latency, "Latency of a message within a host");
  time("--host-latency", options->host_latency, "Latency of a message between hosts");

  const std::string batch = "Batch";
  app->add_option("--global-batch", options->search.global_batch,
                  "Samples of a step; by default 4 micro-batches of the profile for each rank")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(batch);
  app->add_option("--microbatch", options->model.microbatch, "Samples of the profile's micro-batch")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->capture_default_str()
      ->group(batch);
  app->add_option("--try-microbatch", options->search.microbatches,
                  "Use micro-batches of these sizes instead; times and activations are scaled in proportion")
      ->check(CLI::PositiveNumber)
      ->delimiter(',')
      ->type_name("N[,N...]")
      ->allow_extra_args(false)
      ->group(batch);

  const std::string model = "Model";
  app->add_option(
         "--optimizer-bytes", options->search.optimizer_bytes,
         "Bytes of optimizer state for each byte of parameters: 0 for SGD, 1 with momentum, 2 for Adam")
      ->check(CLI::NonNegativeNumber)
      ->type_name("X")
      ->capture_default_str()
      ->group(model);
  app->add_option("--tensor-layers", options->tensor_layers,
                  "Layers that tensor parallel splits: a part of their names or descriptions, or 'block*'")
      ->type_name("PATTERN")
      ->allow_extra_args(false)
      ->group(model);
  app->add_option("--heads", options->model.split_units, "Tensor parallel must divide this number")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->group(model);
  app->add_option("--reductions", options->model.reductions,
                  "All-reduces of a split layer in each of forward and backward; a transformer block has 2")
      ->check(CLI::NonNegativeNumber)
      ->type_name("N")
      ->capture_default_str()
      ->group(model);
  app->add_option("--split-backward", options->search.split_backward,
                  "Time of a backward that a schedule splits, relative to a whole backward")
      ->check(CLI::PositiveNumber)
      ->type_name("X")
      ->capture_default_str()
      ->group(model);

  const std::string search = "Search";
  const auto fixed = [&](const char* name, int& into) {
    app->add_option(name, into, "Only factorizations with this size")
        ->check(CLI::PositiveNumber)
        ->type_name("N")
        ->group(search);
  };
  fixed("--data", options->search.data);
  fixed("--pipeline", options->search.pipeline);
  fixed("--tensor", options->search.tensor);
  std::string names;
  for (const std::string_view name : planner::schedules())
    names += (names.empty() ? "Schedules of a pipeline; by default all of " : ", ") + std::string(name);
  app->add_option("--schedule", options->search.schedules, names)
      ->delimiter(',')
      ->type_name("NAME[,NAME...]")
      ->allow_extra_args(false)
      ->group(search);
  app->add_option("--max-chunks", options->search.max_chunks,
                  "Maximum number of stages on a rank: 2, 4, ... up to V")
      ->check(CLI::PositiveNumber)
      ->type_name("V")
      ->capture_default_str()
      ->group(search);
  app->add_option("--plans", options->search.plans, "Number of plans to print")
      ->check(CLI::PositiveNumber)
      ->type_name("N")
      ->capture_default_str()
      ->group(search);
  app->add_flag("--every-schedule", options->search.every_schedule,
                "Print several schedules of one factorization, not only the best one")
      ->group(search);
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool

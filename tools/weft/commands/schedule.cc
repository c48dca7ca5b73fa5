#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/draw.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/parallel/schedule/liveness.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/simulate.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/schedule/validate.h>

#include <algorithm>
#include <cstdio>
#include <map>

#include "tools/weft/command.h"
#include "tools/weft/json_text.h"

namespace weft::tool {
namespace schedule_command {
namespace {

struct Options {
  std::string type, load, save, svg, title;
  schedule::Shape shape{.ranks = 4, .microbatches = 8};
  schedule::PipedreamOptions pipedream;
  int batches = 2;
  std::string recompute = "never";
  std::vector<std::string> costs;
  bool messages = false;
  int waits = 0;
  bool list = false;
};

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return text;
}

// "forward=2" of all stages, "forward=2,3,2,2" of each stage.
void apply_cost(const std::string& text, int stages, schedule::Costs& costs) {
  using schedule::StageCost;
  static const std::map<std::string, double StageCost::*> of_stage = {
      {"forward", &StageCost::forward},
      {"input-gradient", &StageCost::input_gradient},
      {"weight-gradient", &StageCost::weight_gradient},
      {"recompute", &StageCost::recompute},
      {"activation", &StageCost::activation},
      {"kept", &StageCost::kept_for_weight_gradient},
      {"checkpoint", &StageCost::checkpoint}};
  static const std::map<std::string, double schedule::Costs::*> of_all = {
      {"link", &schedule::Costs::link},
      {"overlap", &schedule::Costs::overlap},
      {"unshard", &schedule::Costs::unshard},
      {"reduce", &schedule::Costs::reduce_gradient},
      {"step", &schedule::Costs::optimizer_step}};
  const std::size_t mark = std::min(text.find('='), text.size());
  const std::string name = text.substr(0, mark);
  std::vector<double> values;
  for (const std::string& part : CLI::detail::split(text.substr(std::min(mark + 1, text.size())), ',')) {
    double value = 0;
    if (!CLI::detail::lexical_cast(part, value) || !(value >= 0 && value < 1e12))
      throw UsageError("--cost " + printable(text) + ": expected NAME=NUMBER, or a number for each stage");
    values.push_back(value);
  }
  if (const auto one = of_all.find(name); one != of_all.end() && values.size() == 1) {
    costs.*(one->second) = values.front();
    return;
  }
  const auto known = of_stage.find(name);
  if (known == of_stage.end()) {
    std::string names;
    for (const auto& [each, member] : of_stage) names += each + ", ";
    for (const auto& [each, member] : of_all) names += each + ", ";
    throw UsageError("--cost " + printable(text) + ": expected one value of " + names +
                     "of the first ones also a list");
  }
  const auto count = static_cast<std::size_t>(stages);
  if (values.size() != 1 && values.size() != count)
    throw UsageError("--cost " + printable(text) + ": " + std::to_string(values.size()) +
                     " values, expected 1 or " + std::to_string(stages) + ", one for each stage");
  if (costs.stages.size() == 1) costs.stages.assign(count, costs.stages.front());
  for (std::size_t stage = 0; stage < count; ++stage)
    costs.stages[stage].*(known->second) = values[values.size() == 1 ? 0 : stage];
}

schedule::Schedule given(const Options& options) {
  if (!options.load.empty()) return schedule::load(read_file(options.load), options.load);
  if (options.type == "pipedream") return schedule::pipedream(options.shape, options.pipedream);
  if (options.type == "pipedream-2bw") return schedule::pipedream_2bw(options.shape, options.batches);
  return schedule::generate(options.type, options.shape);
}

bool has_messages(const schedule::Schedule& schedule) {
  return std::any_of(schedule.ranks.begin(), schedule.ranks.end(), [](const auto& actions) {
    return std::any_of(actions.begin(), actions.end(),
                       [](const schedule::Action& each) { return is_send(each.op); });
  });
}

void print_types() {
  for (const schedule::Generator& each : schedule::generators())
    std::printf("%-16s %s\n", std::string(each.name).c_str(), std::string(each.summary).c_str());
}

void print_prediction(const schedule::Schedule& placed, const schedule::Prediction& prediction) {
  const auto live = schedule::liveness(placed);
  std::printf("step %s, bubble %s %%; without a barrier between steps: period %s, bubble %s %%\n",
              number(prediction.time).c_str(), number(100 * prediction.bubble_with_barrier).c_str(),
              number(prediction.period).c_str(), number(100 * prediction.bubble).c_str());
  std::printf("%zu messages in one order\n\n", prediction.timeline.transfers.size());
  std::printf("%4s  %8s  %8s  %11s  %8s\n", "rank", "busy", "idle", "activations", "received");
  for (std::size_t rank = 0; rank < placed.ranks.size(); ++rank) {
    const auto& spans = prediction.timeline.ranks[rank];
    const double busy = prediction.busy[rank];
    const double active = spans.empty() ? 0 : spans.back().finish - spans.front().start;
    const int received = live.ranks[rank].slots(schedule::Held::received_activation) +
                         live.ranks[rank].slots(schedule::Held::received_gradient);
    std::printf("%4zu  %8s  %8s  %11s  %8d\n", rank, number(busy).c_str(), number(active - busy).c_str(),
                number(prediction.peak_activations[rank]).c_str(), received);
  }
}

Exit run(const Options& options) {
  if (options.list) return print_types(), Exit::ok;
  if (options.type.empty() == options.load.empty())
    throw UsageError("schedule: expected --type or --load, or --list for the types");
  static const std::map<std::string, schedule::Recompute> modes = {
      {"never", schedule::Recompute::never},
      {"except-last", schedule::Recompute::except_last},
      {"always", schedule::Recompute::always}};
  const schedule::Schedule plan = schedule::add_recomputation(given(options), modes.at(options.recompute));
  schedule::Schedule placed = has_messages(plan) ? plan : schedule::place_communication(plan);
  if (options.waits > 0) placed = schedule::place_waits(placed, options.waits);
  schedule::prove_message_order(placed);
  schedule::Costs costs;
  for (const std::string& each : options.costs) apply_cost(each, plan.stages(), costs);
  const schedule::Prediction prediction = schedule::predict(placed, costs);

  const std::string name = options.load.empty() ? options.type : options.load;
  const std::string sizes = std::to_string(plan.ranks.size()) + " ranks, " + std::to_string(plan.stages()) +
                            " stages, " + std::to_string(plan.microbatches) + " micro-batches";
  std::printf("%s: %s\n\n%s\n", printable(name).c_str(), sizes.c_str(),
              schedule::table(placed, prediction.timeline).c_str());
  print_prediction(placed, prediction);
  if (!options.save.empty())
    write_file(options.save, schedule::save(options.messages || options.waits > 0 ? placed : plan));
  if (!options.svg.empty()) {
    const std::string title = options.title.empty() ? name + ": " + sizes + ", bubble " +
                                                          number(100 * prediction.bubble_with_barrier) + " %"
                                                    : options.title;
    write_file(options.svg, schedule::svg(placed, {{title, prediction.timeline}}));
  }
  return Exit::ok;
}

}  // namespace
}  // namespace schedule_command

Command add_schedule(CLI::App& program) {
  using namespace schedule_command;
  auto options = std::make_shared<Options>();
  CLI::App* app = program.add_subcommand(
      "schedule", "Print, check, simulate and draw the schedule of a pipeline; calls no agent");
  app->add_option("--type", options->type, "A generator; --list prints their names");
  app->add_option("--load", options->load, "A schedule as CSV, in the format of torch.distributed.pipelining")
      ->type_name("FILE");
  app->add_flag("--list", options->list, "Print the types");
  app->add_option("--stages,--ranks", options->shape.ranks,
                  "Number of ranks, each with one or several chunks")
      ->type_name("P")
      ->capture_default_str();
  app->add_option("--microbatches", options->shape.microbatches, "Micro-batches of a step")
      ->type_name("M")
      ->capture_default_str();
  app->add_option("--chunks", options->shape.chunks,
                  "Stages of the model on each rank; 0: the minimum of the type")
      ->type_name("V");
  app->add_option("--replicas", options->pipedream.replicas, "pipedream: ranks of each stage, such as 2,1,1")
      ->delimiter(',');
  app->add_flag("--vertical-sync", options->pipedream.vertical_sync,
                "pipedream: all stages use the version of the first one");
  app->add_option("--batches", options->batches, "pipedream-2bw: batches of M micro-batches each")
      ->capture_default_str();
  app->add_option("--recompute", options->recompute, "Which forwards are recomputed")
      ->check(CLI::IsMember({"never", "except-last", "always"}))
      ->capture_default_str();
  app->add_option("--cost", options->costs,
                  "Seconds: forward, input-gradient, weight-gradient, recompute (1 by default), link, "
                  "reduce, unshard, "
                  "step (0). Memory: activation, kept (1), checkpoint (0). overlap: a share (1)")
      ->type_name("NAME=X[,X...]");
  app->add_option("--waits", options->waits, "Add waits, so that at most N sends of a rank are in flight")
      ->type_name("N");
  app->add_flag("--messages", options->messages, "Also save sends and receives");
  app->add_option("--save", options->save, "Write the schedule into this file, as CSV")->type_name("FILE");
  app->add_option("--svg", options->svg, "Draw the simulated step into this file")->type_name("FILE");
  app->add_option("--title", options->title, "The title of the picture");
  return {app, [options] { return run(*options); }};
}

}  // namespace weft::tool

#include <weft/parallel/planner/internal/predictor.h>

#include <weft/parallel/partition/balance.h>
#include <weft/parallel/partition/plan.h>
#include <weft/parallel/schedule/generators.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

namespace weft::planner {
namespace {

constexpr Kind all_kinds[] = {
    {"1f1b", 1},
    {"gpipe", 1},
    {"interleaved", 0},
    {"looped-bfs", 0},
    {"zb-h1", 1, true},
    {"zb-h2", 1, true},
    {"interleaved-zb", 0, true},
    {"zb-v", 2, true, true},
    {"v-half", 2, true, true},
    {"v-min", 2, true, true},
    {"dualpipe-v", 2, true, true},
};

// The limit for one simulation. It is exceeded if three rounds of the pipeline's ranks have more
// computations.
constexpr int max_computations = 8192;

constexpr int max_ranks = 1'000'000, max_samples = 1'000'000'000;

const Kind* find_kind(std::string_view name) {
  const auto found = std::find_if(std::begin(all_kinds), std::end(all_kinds),
                                  [&](const Kind& kind) { return kind.name == name; });
  return found == std::end(all_kinds) ? nullptr : &*found;
}

std::string unknown_schedule(const std::string& name) {
  std::string known;
  for (const Kind& kind : all_kinds) known += (known.empty() ? "" : ", ") + std::string(kind.name);
  return "unknown schedule '" + name + "', expected one of " + known;
}

std::vector<std::vector<int>> placement_of(const Choice& choice) {
  return find_kind(choice.schedule)->v_shape
             ? schedule::v_placement(choice.grid.pipeline)
             : schedule::looped_placement(choice.grid.pipeline, choice.chunks);
}

void expect_positive(const char* what, double figure) {
  if (!(figure > 0) || std::isinf(figure))
    refuse_plan(std::string(what) + " is " + std::to_string(figure) + ", expected a finite number above 0");
}

void expect_not_negative(const char* what, double figure) {
  if (!(figure >= 0) || std::isinf(figure))
    refuse_plan(std::string(what) + " is " + std::to_string(figure) +
                ", expected a finite number of at least 0");
}

void expect_integer(const char* what, int number, int least, int most) {
  if (number < least || number > most)
    refuse_plan(std::string(what) + " is " + std::to_string(number) + ", expected " + std::to_string(least) +
                " to " + std::to_string(most));
}

void check_model(const Model& model) {
  partition::topological_order(model.profile);
  const std::size_t layers = model.profile.layers.size();
  for (const std::size_t figures : {model.kept_bytes.size(), model.split.size()})
    if (figures != 0 && figures != layers)
      refuse_plan("the model has figures of " + std::to_string(figures) +
                  " layers, expected one for each of " + std::to_string(layers) + " layers of the profile");
  for (const double bytes : model.kept_bytes) expect_not_negative("the kept size of a layer", bytes);
  expect_integer("the micro-batch of the profile", model.microbatch, 1, max_samples);
  expect_integer("the number of units of split layers", model.split_units, 0, max_samples);
  expect_integer("the number of reductions of a split layer", model.reductions, 0, 1000);
}

void check_machine(const Machine& machine) {
  expect_integer("the number of hosts", machine.hosts, 1, max_ranks);
  expect_integer("the number of ranks of a host", machine.ranks_per_host, 1, max_ranks / machine.hosts);
  expect_integer("the number of cores of a host", machine.cores_per_host, 0, max_ranks);
  if (!(machine.memory_bytes > 0))
    refuse_plan("the memory of a rank is " + std::to_string(machine.memory_bytes) +
                " bytes, expected a number above 0");
  expect_positive("the bandwidth within a host", machine.bytes_per_second);
  expect_positive("the bandwidth of a host", machine.host_bytes_per_second);
  expect_not_negative("the latency within a host", machine.latency);
  expect_not_negative("the latency between hosts", machine.host_latency);
}

void check_options(const Options& options) {
  expect_integer("the number of samples of a step", options.global_batch, 0, max_samples);
  for (const int microbatch : options.microbatches)
    expect_integer("a micro-batch", microbatch, 1, max_samples);
  for (const std::string& name : options.schedules)
    if (find_kind(name) == nullptr) refuse_plan(unknown_schedule(name));
  expect_integer("the number of chunks", options.max_chunks, 1, 1000);
  expect_not_negative("the size of the optimizer's state", options.optimizer_bytes);
  expect_positive("the time of a split backward", options.split_backward);
  expect_positive("the size of a bucket", options.bucket_bytes);
  if (options.plans == 0) refuse_plan("0 plans were requested, expected at least 1");
}

// Divides the layers into stages so that the bytes which a rank keeps of them are balanced.
partition::Partition balance_by_memory(const RankModel& model, std::size_t stages, double parameter_copies) {
  partition::Profile held = model.profile;
  for (std::size_t i = 0; i < held.layers.size(); ++i) held.layers[i].activation_bytes = model.kept_bytes[i];
  std::vector<std::size_t> counts;
  for (const partition::Stage& stage : partition::balance_by_size(held, stages, parameter_copies).stages)
    counts.push_back(stage.layers.size());
  return partition::cut_by_count(model.profile, counts);
}

// For each edge between stages: the bytes of the outputs that follow it.
std::vector<double> bytes_of_edges(const partition::Profile& profile, const partition::Partition& cut,
                                   const std::vector<schedule::Edge>& edges) {
  std::vector<int> stage_of_layer(profile.layers.size());
  for (std::size_t stage = 0; stage < cut.stages.size(); ++stage)
    for (const std::size_t layer : cut.stages[stage].layers) stage_of_layer[layer] = static_cast<int>(stage);
  std::map<std::pair<schedule::Edge, std::size_t>, double> outputs;  // of a layer, once for each edge
  for (const partition::Edge& edge : profile.edges)
    outputs[{{stage_of_layer[edge.from], stage_of_layer[edge.to]}, edge.from}] =
        profile.layers[edge.from].activation_bytes;
  std::map<schedule::Edge, double> bytes;
  for (const auto& [output, size] : outputs) bytes[output.first] += size;
  std::vector<double> found;
  for (const schedule::Edge& edge : edges) found.push_back(bytes[edge]);
  return found;
}

}  // namespace

std::span<const Kind> kinds() { return all_kinds; }

void refuse_plan(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "plan: " + why);
}

// The result of a simulation: for each pipeline rank or stage.
struct Predictor::Simulated {
  double seconds = 0;
  std::vector<double> busy, peak_activations;
  std::vector<double> gradients_complete;  // of a stage: when its last weight gradient is computed

  // Extrapolates by `times` periods. A period is the difference between `before` and `last`.
  static Simulated extended(const Simulated& before, const Simulated& last, double times) {
    const auto further = [times](double from, double to) { return to + (to - from) * times; };
    const auto each = [&](const std::vector<double>& from, std::vector<double> to) {
      std::transform(from.begin(), from.end(), to.begin(), to.begin(), further);
      return to;
    };
    return {further(before.seconds, last.seconds), each(before.busy, last.busy),
            each(before.peak_activations, last.peak_activations),
            each(before.gradients_complete, last.gradients_complete)};
  }
};

Predictor::Predictor(const Model& model, const Machine& machine, const Options& options)
    : model_(model), machine_(machine), options_(options) {
  check_model(model);
  check_machine(machine);
  check_options(options);
  for (std::size_t i = 0; i < model.profile.layers.size(); ++i) {
    if (partition::is_input(model.profile, i)) continue;
    ++layers_;
    splits_ = splits_ || (!model.split.empty() && model.split[i]);
  }
  if (layers_ == 0) refuse_plan("the profile has inputs alone, expected at least one layer");
  const double samples = 4.0 * machine.ranks() * model.microbatch;
  if (options.global_batch == 0 && samples > max_samples)
    refuse_plan("4 micro-batches for each rank are " + std::to_string(static_cast<long long>(samples)) +
                " samples, expected at most " + std::to_string(max_samples) +
                ": give the number of samples of a step");
  global_batch_ = options.global_batch > 0 ? options.global_batch : static_cast<int>(samples);
}

std::optional<std::string> Predictor::problem(const Choice& choice) const {
  const auto text = [](auto number) { return std::to_string(number); };
  const Grid& grid = choice.grid;
  if (grid.data < 1 || grid.pipeline < 1 || grid.tensor < 1 ||
      machine_.ranks() / grid.data / grid.pipeline / grid.tensor == 0 || grid.ranks() != machine_.ranks())
    return "data " + text(grid.data) + ", pipeline " + text(grid.pipeline) + " and tensor " +
           text(grid.tensor) + ", expected numbers whose product is the machine's " + text(machine_.ranks()) +
           " ranks";
  const Kind* kind = find_kind(choice.schedule);
  if (kind == nullptr) return unknown_schedule(choice.schedule);
  if (choice.chunks < 1 || (kind->chunks != 0 && choice.chunks != kind->chunks))
    return choice.schedule + " has " + (kind->chunks == 0 ? "at least 1" : text(kind->chunks)) +
           " stages on each rank, not " + text(choice.chunks);
  if (grid.tensor > 1 && !splits_) return "no layer is split over tensor ranks";
  if (machine_.ranks_per_host % grid.tensor != 0 && grid.tensor % machine_.ranks_per_host != 0)
    return "hosts of " + text(machine_.ranks_per_host) + " ranks do not divide into tensor groups of " +
           text(grid.tensor);
  if (model_.split_units % grid.tensor != 0)
    return "the " + text(model_.split_units) + " units of a split layer do not divide over " +
           text(grid.tensor) + " tensor ranks";
  const auto stages = static_cast<std::size_t>(grid.pipeline) * static_cast<std::size_t>(choice.chunks);
  if (stages > layers_) return text(layers_) + " layers do not divide into " + text(stages) + " stages";
  const auto samples = static_cast<long long>(grid.data) * choice.microbatch;
  if (choice.microbatch < 1 || global_batch_ % samples != 0)
    return text(global_batch_) + " samples do not divide into micro-batches of " + text(choice.microbatch) +
           " for data " + text(grid.data);
  return std::nullopt;
}

const RankModel& Predictor::rank_model_of(int microbatch, int tensor) {
  const auto [place, added] = rank_models_.try_emplace({microbatch, tensor});
  if (added) place->second = rank_model(model_, microbatch, tensor, levels_of(machine_, tensor, 1));
  return place->second;
}

const Predictor::Stages& Predictor::stages_of(const Choice& choice) {
  const int count = choice.grid.pipeline * choice.chunks;
  const auto [place, added] =
      stages_.try_emplace({choice.microbatch, choice.grid.tensor, count, choice.balance});
  Stages& made = place->second;
  if (!added) return made;
  const RankModel& model = rank_model_of(choice.microbatch, choice.grid.tensor);
  made.cut = choice.balance == Balance::time
                 ? partition::balance_exactly(model.profile, static_cast<std::size_t>(count))
                 : balance_by_memory(model, static_cast<std::size_t>(count), 2 + options_.optimizer_bytes);
  for (const partition::Stage& stage : made.cut.stages) {
    double kept = 0, tensor = 0;
    for (const std::size_t layer : stage.layers) {
      kept += model.kept_bytes[layer];
      tensor += model.tensor_seconds[layer];
    }
    const double half = (stage.backward_seconds - tensor) / 2;
    made.tensor_seconds.push_back(tensor);
    made.costs.push_back({.forward = stage.forward_seconds,
                          .input_gradient = tensor + half,
                          .weight_gradient = half,
                          .recompute = stage.forward_seconds,
                          .activation = kept,
                          .kept_for_weight_gradient = kept,
                          .checkpoint = 0});
  }
  made.edges = partition::edges_of(model.profile, made.cut);
  made.edge_bytes = bytes_of_edges(model.profile, made.cut, made.edges);
  made.forward_before.resize(made.costs.size());
  made.backward_before.resize(made.costs.size());
  for (const schedule::Edge& edge : made.edges) {  // ascending: all chains that lead to edge.from are known
    const auto from = static_cast<std::size_t>(edge.from), to = static_cast<std::size_t>(edge.to);
    const partition::Stage& stage = made.cut.stages[from];
    made.forward_before[to] =
        std::max(made.forward_before[to], made.forward_before[from] + stage.forward_seconds);
    made.backward_before[to] =
        std::max(made.backward_before[to], made.backward_before[from] + stage.backward_seconds);
  }
  return made;
}

int Predictor::microbatches_of(const Choice& choice) const {
  return global_batch_ / choice.grid.data / choice.microbatch;
}

std::vector<std::size_t> Predictor::layers_of_stages(const Choice& choice) {
  std::vector<std::size_t> counts;
  for (const partition::Stage& stage : stages_of(choice).cut.stages) counts.push_back(stage.layers.size());
  return counts;
}

schedule::Costs Predictor::costs_of(const Choice& choice, const Stages& stages) const {
  schedule::Costs costs;
  costs.stages = stages.costs;
  if (find_kind(choice.schedule)->splits_backward)
    for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
      schedule::StageCost& cost = costs.stages[stage];
      cost.weight_gradient *= options_.split_backward;
      cost.input_gradient = stages.tensor_seconds[stage] + cost.weight_gradient;
    }
  const auto placement = placement_of(choice);
  for (std::size_t i = 0; i < stages.edges.size(); ++i) {
    const int from = placement[static_cast<std::size_t>(stages.edges[i].from)].front();
    const int to = placement[static_cast<std::size_t>(stages.edges[i].to)].front();
    if (from == to) continue;
    const double seconds =
        message_seconds(pipeline_link(machine_, choice.grid, from, to), stages.edge_bytes[i]);
    for (const auto& ranks : {std::pair{from, to}, std::pair{to, from}})  // activations and gradients
      costs.links[ranks] = std::max(costs.links[ranks], seconds);
  }
  return costs;
}

std::vector<Memory> Predictor::states_of(const Choice& choice, const Stages& stages) const {
  std::vector<Memory> states(static_cast<std::size_t>(choice.grid.pipeline));
  const auto placement = placement_of(choice);
  for (std::size_t stage = 0; stage < stages.costs.size(); ++stage) {
    Memory& state = states[static_cast<std::size_t>(placement[stage].front())];
    const double bytes = stages.cut.stages[stage].parameter_bytes;
    state.parameters += bytes;
    state.gradients += bytes;
    state.optimizer += options_.optimizer_bytes * bytes;
  }
  return states;
}

// A rank computes all micro-batches of its stages. Before its first computation, the earlier stages compute
// a forward. If the schedule does not split backwards, the earlier stages compute a backward after the
// rank's last computation.
double Predictor::least_seconds(const Choice& choice) {
  struct Rank {
    double busy = 0, before = 0, after = 0;
    bool used = false;
  };
  const Stages& stages = stages_of(choice);
  const bool splits = find_kind(choice.schedule)->splits_backward;
  const double part = splits ? options_.split_backward : 1;
  std::vector<Rank> ranks(static_cast<std::size_t>(choice.grid.pipeline));
  const auto placement = placement_of(choice);
  for (std::size_t stage = 0; stage < stages.costs.size(); ++stage) {
    Rank& rank = ranks[static_cast<std::size_t>(placement[stage].front())];
    const schedule::StageCost& cost = stages.costs[stage];
    rank.busy += cost.forward + stages.tensor_seconds[stage] + 2 * part * cost.weight_gradient;
    const double before = stages.forward_before[stage], after = splits ? 0 : stages.backward_before[stage];
    rank.before = rank.used ? std::min(rank.before, before) : before;
    rank.after = rank.used ? std::min(rank.after, after) : after;
    rank.used = true;
  }
  double least = 0;
  for (const Rank& rank : ranks)
    least = std::max(least, rank.before + microbatches_of(choice) * rank.busy + rank.after);
  return least;
}

Memory Predictor::least_memory(const Choice& choice) {
  const auto states = states_of(choice, stages_of(choice));
  return *std::max_element(states.begin(), states.end(),
                           [](const Memory& a, const Memory& b) { return a.total() < b.total(); });
}

Predictor::Simulated Predictor::simulate_all(const Choice& choice, const Stages& stages,
                                             const schedule::Costs& costs, int microbatches) {
  schedule::Schedule made = schedule::generate(
      choice.schedule,
      {.ranks = choice.grid.pipeline, .microbatches = microbatches, .chunks = choice.chunks});
  made.edges = stages.edges;
  const schedule::Prediction prediction = schedule::predict(made, costs);
  Simulated simulated{prediction.time, prediction.busy, prediction.peak_activations,
                      std::vector<double>(stages.costs.size())};
  for (std::size_t rank = 0; rank < made.ranks.size(); ++rank)
    for (const schedule::Span& span : prediction.timeline.ranks[rank])
      for_each_part(made.ranks[rank][span.action], [&](const schedule::Action& action) {
        if (action.op != schedule::Op::backward && action.op != schedule::Op::weight_gradient) return;
        double& complete = simulated.gradients_complete[static_cast<std::size_t>(action.stage)];
        complete = std::max(complete, span.finish);
      });
  return simulated;
}

// After a few rounds, each of as many micro-batches as ranks, all schedules repeat themselves. Therefore
// only these rounds are simulated, and each further round takes as long as the last one.
Predictor::Simulated Predictor::simulate(const Choice& choice, const Stages& stages,
                                         const schedule::Costs& costs, int microbatches) {
  const int ranks = choice.grid.pipeline;
  const auto of_a_round = static_cast<double>(ranks) * ranks * choice.chunks;  // computations
  const double rounds = std::max(3.0, std::floor(max_computations / of_a_round));
  if (microbatches < (rounds + 1) * ranks) return simulate_all(choice, stages, costs, microbatches);
  const int last = static_cast<int>(rounds) * ranks + microbatches % ranks;
  return Simulated::extended(simulate_all(choice, stages, costs, last - ranks),
                             simulate_all(choice, stages, costs, last),
                             static_cast<double>((microbatches - last) / ranks));
}

// The time at which the last rank has reduced the gradients of its stages.
double Predictor::reduced_seconds(const Choice& choice, const Stages& stages,
                                  const Simulated& simulated) const {
  const Grid& grid = choice.grid;
  const Levels levels = levels_of(machine_, grid.data, grid.data_stride());
  if (stages.costs.size() == 1) {
    const double bytes = stages.cut.stages.front().parameter_bytes;
    const double buckets = std::ceil(bytes / options_.bucket_bytes);
    const double last = all_reduce_seconds(levels, std::min(bytes, options_.bucket_bytes));
    const double all = bytes > 0 ? buckets * all_reduce_seconds(levels, bytes / buckets) : 0;
    const double backward = stages.cut.stages.front().backward_seconds;
    return std::max(simulated.seconds + last, simulated.seconds - backward + all);
  }
  const auto placement = placement_of(choice);
  std::vector<std::size_t> order(stages.costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return simulated.gradients_complete[a] < simulated.gradients_complete[b];
  });
  std::vector<double> free(static_cast<std::size_t>(grid.pipeline));  // when a rank has reduced a stage
  double finish = simulated.seconds;
  for (const std::size_t stage : order) {
    double& now = free[static_cast<std::size_t>(placement[stage].front())];
    now = std::max(now, simulated.gradients_complete[stage]) +
          all_reduce_seconds(levels, stages.cut.stages[stage].parameter_bytes);
    finish = std::max(finish, now);
  }
  return finish;
}

// A lower bound of the time if the ranks of a host share its cores: the computations of all ranks, spread
// over the cores of all hosts. busy: the sum over the ranks of one pipeline.
double Predictor::shared_core_seconds(const Grid& grid, double busy) const {
  if (machine_.cores_per_host == 0) return 0;
  return busy * grid.data * grid.tensor / (machine_.hosts * machine_.cores_per_host);
}

Plan Predictor::predict(const Choice& choice) {
  const Stages& stages = stages_of(choice);
  const auto placement = placement_of(choice);
  const int microbatches = microbatches_of(choice);
  const Simulated simulated = simulate(choice, stages, costs_of(choice, stages), microbatches);
  const double busy = std::accumulate(simulated.busy.begin(), simulated.busy.end(), 0.0);
  Plan plan{.choice = choice, .microbatches = microbatches};
  plan.pipeline_seconds = std::max(simulated.seconds, shared_core_seconds(choice.grid, busy));
  plan.reduction_seconds = reduced_seconds(choice, stages, simulated) - simulated.seconds;
  plan.step_seconds = plan.pipeline_seconds + plan.reduction_seconds;
  if (plan.pipeline_seconds > 0)
    plan.bubble = std::max(0.0, 1 - busy / (plan.pipeline_seconds * choice.grid.pipeline));
  plan.memory = states_of(choice, stages);
  std::vector<double> tensor(plan.memory.size());
  for (std::size_t rank = 0; rank < plan.memory.size(); ++rank)
    plan.memory[rank].activations = simulated.peak_activations[rank];
  for (std::size_t stage = 0; stage < stages.costs.size(); ++stage) {
    double& seconds = tensor[static_cast<std::size_t>(placement[stage].front())];
    seconds += 2.0 * microbatches * stages.tensor_seconds[stage];
    plan.tensor_seconds = std::max(plan.tensor_seconds, seconds);
    if (stage == 0) continue;
    const RankModel& model = rank_model_of(choice.microbatch, choice.grid.tensor);
    plan.first_layers.push_back(model.profile.layers[stages.cut.stages[stage].layers.front()].name);
  }
  return plan;
}

}  // namespace weft::planner

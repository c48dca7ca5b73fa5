#include <weft/parallel/pipeline/group_pipeline.h>

#include <weft/parallel/pipeline/deferred_batch_norm.h>
#include <weft/parallel/pipeline/internal/check_schedule.h>
#include <weft/parallel/pipeline/internal/group_messages.h>
#include <weft/parallel/pipeline/internal/rank_step.h>
#include <weft/parallel/pipeline/internal/rank_timeline.h>
#include <weft/parallel/pipeline/internal/sharded_stages.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/parallel/schedule/text.h>
#include <weft/parallel/training/broadcast_state.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <utility>

namespace weft::pipeline {

using rpc::Error;
using rpc::ErrorKind;

namespace {

// A rank's report at the end of a step.
struct GroupReport {
  std::vector<at::Tensor> losses;  // by micro-batch; undefined: of another rank
  RankSpans spans;
};
WEFT_CODEC(GroupReport, losses, spans)

// What a rank has found before it constructs a pipeline, or gives it other groups.
struct GroupVerdict {
  std::string refusal;    // why this rank refuses; empty: it does not
  std::string signature;  // equal on all ranks
};
WEFT_CODEC(GroupVerdict, refusal, signature)

// Data that the first rank which uses inputs sends to the others.
struct GroupStepPlan {
  std::int64_t rows = 0;
  bool with_backward = true;
};
WEFT_CODEC(GroupStepPlan, rows, with_backward)

// A text that is equal on two ranks if their values fit together.
std::string signature_of(const StageGraph& graph, const schedule::Schedule& schedule,
                         const GroupPipelineOptions& options) {
  std::string text = std::to_string(schedule.microbatches) + " micro-batches, edges";
  for (const schedule::Edge& edge : schedule.edges) {
    text += " " + std::to_string(edge.from) + "-" + std::to_string(edge.to) + ":";
    for (const int output : graph.outputs_of(edge)) text += std::to_string(output) + ",";
  }
  if (options.sharded) {
    const auto type_of = [](const auto& type) { return type ? c10::toString(*type) : "its own type"; };
    const auto& reduction =
        options.sharded->reduction ? options.sharded->reduction : options.sharded->compute;
    text += std::string(" sharded stages, computed in ") + type_of(options.sharded->compute) +
            " and reduced in " + type_of(reduction);
    if (options.sharded->values != nullptr)
      text += options.sharded->initialize ? ", values deferred" : ", values to be loaded";
  }
  if (options.data_parallel) text += " data parallel";
  if (options.values_through_host) text += " values through the host's memory";
  if (options.optimizer) text += " optimizer " + dist_optim::to_string(*options.optimizer);
  for (const Tie& tie : graph.ties()) {
    text += " tie";
    for (const StageParameter& each : tie) text += " " + std::to_string(each.stage) + "." + each.name;
  }
  return text + " schedule " + schedule::save(schedule);
}

[[noreturn]] void refuse_pipeline(const std::string& text) {
  throw Error(ErrorKind::invalid_argument, "GroupPipeline: " + text);
}

// The error of another rank of the pipeline; null: all ranks have equal signatures.
std::exception_ptr error_in(const std::vector<GroupVerdict>& verdicts) {
  for (std::size_t rank = 0; rank < verdicts.size(); ++rank)
    if (!verdicts[rank].refusal.empty())
      return std::make_exception_ptr(Error(ErrorKind::failed_precondition,
                                           "GroupPipeline: rank " + std::to_string(rank) +
                                               " of the pipeline has refused: " + verdicts[rank].refusal));
  for (std::size_t rank = 1; rank < verdicts.size(); ++rank)
    if (verdicts[rank].signature != verdicts[0].signature)
      return std::make_exception_ptr(Error(
          ErrorKind::invalid_argument,
          "GroupPipeline: rank " + std::to_string(rank) +
              " has other cuts, another schedule or other options than rank 0: " + verdicts[rank].signature +
              "; rank 0: " + verdicts[0].signature));
  return nullptr;
}

// Calls check(), which returns this rank's signature or throws. If it throws on one rank, or the signatures
// of a pipeline differ, all ranks of all pipelines throw: the ranks of a pipeline exchange what they have
// found, and then the ranks with the same stages.
void agree(const collectives::Group& group, const std::optional<collectives::Group>& data_parallel,
           std::chrono::nanoseconds timeout, const std::function<std::string()>& check) {
  GroupVerdict own;
  std::exception_ptr error;
  try {
    own.signature = check();
  } catch (const std::exception& refused) {
    own.refusal = refused.what();
    error = std::current_exception();
  }
  const std::exception_ptr others = error_in(group.all_gather_object(own, timeout).get());
  if (error == nullptr) error = others;
  if (data_parallel) {
    const auto texts =
        data_parallel->all_gather_object(error == nullptr ? std::string() : rpc::what_of(error), timeout)
            .get();
    for (std::size_t rank = 0; rank < texts.size() && error == nullptr; ++rank)
      if (!texts[rank].empty())
        error = std::make_exception_ptr(Error(ErrorKind::failed_precondition,
                                              "GroupPipeline: the pipeline of rank " + std::to_string(rank) +
                                                  " of data_parallel has refused: " + texts[rank]));
  }
  if (error != nullptr) std::rethrow_exception(error);
}

void check(const collectives::Group& group, const StageGraph& graph, const schedule::Schedule& schedule,
           const GroupPipelineOptions& options) {
  if (!options.loss) refuse_pipeline("no loss: give GroupPipelineOptions::loss");
  check_schedule("GroupPipeline", graph, schedule,
                 {.replicas = true,
                  .steps = true,
                  .has_optimizer = options.optimizer.has_value(),
                  .reduces_all = options.data_parallel.has_value(),
                  .sharded = options.sharded.has_value()});
  if (schedule.ranks.size() != static_cast<std::size_t>(group.size()))
    refuse_pipeline("a schedule of " + std::to_string(schedule.ranks.size()) +
                    " ranks, expected one for each of " + std::to_string(group.size()) + " of the group");
  for (const int stage : stages_of(schedule, group.rank()))
    if (!graph.is_here(stage))
      refuse_pipeline("stage " + std::to_string(stage) +
                      " of this rank has no module, expected one: see CutOptions::built");
  check_ties("GroupPipeline", graph, schedule);
  if (options.sharded) expect_all_unsharded("GroupPipeline", schedule);
  refuse_shared_parameters("GroupPipeline", graph, [&](int a, int b) {
    return !options.optimizer && !options.sharded &&
           schedule.placement[static_cast<std::size_t>(a)] == schedule.placement[static_cast<std::size_t>(b)];
  });
}

// Adds the actions that the options require to the computations.
schedule::Schedule complete(schedule::Schedule schedule, const StageGraph& graph,
                            const GroupPipelineOptions& options) {
  schedule = computations_of(std::move(schedule));
  schedule.edges = graph.edges();
  const bool is_replicated = std::any_of(schedule.placement.begin(), schedule.placement.end(),
                                         [](const auto& replicas) { return replicas.size() > 1; });
  if (options.data_parallel && (is_replicated || has_steps(schedule)))
    throw Error(
        ErrorKind::unsupported,
        "GroupPipeline: GroupPipelineOptions::data_parallel with a schedule of replicated stages or of "
        "optimizer steps: expected neither");
  if (options.sharded && !options.data_parallel)
    throw Error(ErrorKind::invalid_argument,
                "GroupPipeline: sharded stages without the ranks that have their parts: give "
                "GroupPipelineOptions::data_parallel");
  if (options.sharded && (options.optimizer || !graph.ties().empty()))
    throw Error(ErrorKind::unsupported,
                "GroupPipeline: sharded stages with " +
                    std::string(options.optimizer ? "an optimizer in the options" : "tied parameters") +
                    ": expected neither ties nor an optimizer in the options; a "
                    "sharded::FullyShardedOptimizer steps GroupPipeline::sharded()");
  if ((options.data_parallel || is_replicated) && !has_reductions(schedule) && !has_steps(schedule))
    schedule = schedule::add_gradient_reduction(schedule, true);
  if (options.optimizer && !has_steps(schedule)) schedule = schedule::add_optimizer_steps(schedule);
  if (options.sharded && !has_sharding(schedule)) schedule = schedule::add_unsharding(schedule);
  return schedule;
}

// Creates the groups of this rank's replicated stages, whose ranks are in the order of the replicas. All
// ranks must call it.
std::map<int, collectives::Group> groups_of_replicas(const collectives::Group& group,
                                                     const schedule::Schedule& schedule) {
  std::map<int, collectives::Group> groups;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto& replicas = schedule.placement[static_cast<std::size_t>(stage)];
    if (replicas.size() < 2) continue;
    const auto own = std::find(replicas.begin(), replicas.end(), group.rank());
    const bool is_here = own != replicas.end();
    const auto made =
        group.split(is_here ? std::optional(stage) : std::nullopt, static_cast<int>(own - replicas.begin()))
            .get();
    if (is_here) groups.emplace(stage, made.value());
  }
  return groups;
}

DeviceRoutes routes_of(const collectives::Group& group, const StageGraph& graph,
                       const schedule::Schedule& schedule, const GroupPipelineOptions& options) {
  if (options.values_through_host) return {};
  return device_routes(group, graph, schedule, options.device.value_or(at::kCPU), options.timeout);
}

}  // namespace

struct GroupPipeline::Impl {
  Impl(collectives::Group of, StageGraph given, schedule::Schedule computations, GroupPipelineOptions wanted,
       DeviceRoutes made)
      : group(std::move(of)),
        graph(std::move(given)),
        schedule(std::move(computations)),
        options(std::move(wanted)),
        credits(credits_of(graph, schedule)),
        devices(options.device ? schedule.ranks.size() : 0, options.device.value_or(at::kCPU)),
        replicas(groups_of_replicas(group, schedule)),
        routes(std::move(made)) {
    const std::set<int> stages = stages_of(schedule, group.rank());
    if (options.device)
      for (const int stage : stages) graph[stage].module->to(*options.device);
    if (options.sharded)
      units = shard_stages(graph, stages,
                           {.pipeline = group,
                            .counterparts = *options.data_parallel,
                            .options = *options.sharded,
                            .timeout = options.timeout,
                            .signature = signature_of(graph, schedule, options)});
    for (const int stage : stages) {
      torch::nn::Module& module = *graph[stage].module;
      ParameterOptions of_stage{
          .optimizer = options.optimizer,
          .group = group_of(stage),
          .op = replicas.contains(stage) ? collectives::ReduceOp::sum : collectives::ReduceOp::avg,
          .mean_loss = options.mean_loss,
          .timeout = options.timeout,
          .units = units.get(),
          .unit = parameters.size()};
      if (of_stage.group) training::broadcast_parameters(*of_stage.group, module, 0);
      const auto own = parameters.try_emplace(stage, module, schedule, group.rank(), stage, of_stage);
      runners.try_emplace(stage, graph[stage], own.first->second.sink());
    }
    for (int stage = 0; stage < graph.size() && first_with_inputs < 0; ++stage)
      for (const Source& source : graph[stage].inputs)
        if (source.from < 0) first_with_inputs = stage;
  }

  struct Result {
    GroupStep step;
    Values outputs;
  };
  Result run(const Values& inputs, const Values& targets, bool with_backward);
  std::vector<GroupReport> reports_of_all(const GroupReport& own) const;
  std::int64_t agreed_rows(const Values& inputs, const Values& targets, bool with_backward) const;
  Values joined_outputs(std::vector<Values> own, const std::vector<double>& weights) const;
  void end_sharded_step(bool with_backward);
  void fail(const std::exception& error);
  void set_groups(collectives::Group next, std::optional<collectives::Group> data_parallel);
  // The group that reduces the gradients of a stage of this rank; nullopt for a sharded stage.
  std::optional<collectives::Group> group_of(int stage) const {
    if (units != nullptr) return std::nullopt;
    const auto own = replicas.find(stage);
    return own == replicas.end() ? options.data_parallel : own->second;
  }
  bool is_last() const { return runners.contains(graph.size() - 1); }

  collectives::Group group;
  const StageGraph graph;
  const schedule::Schedule schedule;
  GroupPipelineOptions options;
  const Credits credits;
  const std::vector<c10::Device> devices;
  std::map<int, collectives::Group> replicas;  // by stage, if it has several
  DeviceRoutes routes;
  std::unique_ptr<sharded::ShardedUnits> units;  // of this rank's stages; null: they are whole
  std::map<int, StageParameters> parameters;     // by stage of this rank
  std::map<int, StageRunner> runners;
  int first_with_inputs = -1;  // the first stage that uses inputs of the step
};

// The first rank that uses inputs sends the number of rows to the others.
std::int64_t GroupPipeline::Impl::agreed_rows(const Values& inputs, const Values& targets,
                                              bool with_backward) const {
  const int root = schedule.rank_of(std::max(first_with_inputs, 0), 0);
  GroupStepPlan plan{.with_backward = with_backward};
  if (group.rank() == root) plan.rows = rows_of(inputs, targets);
  plan = group.broadcast_object(plan, root, options.timeout).get();
  if (plan.with_backward != with_backward)
    throw Error(ErrorKind::invalid_argument,
                "pipeline step: rank " + std::to_string(group.rank()) +
                    (with_backward ? " calls step(), rank " : " calls evaluate(), rank ") +
                    std::to_string(root) + (plan.with_backward ? " step()" : " evaluate()") +
                    ", expected the same function on all ranks");
  const auto is_defined = [](const at::Tensor& tensor) { return tensor.defined(); };
  const bool has_rows = std::any_of(inputs.begin(), inputs.end(), is_defined) ||
                        std::any_of(targets.begin(), targets.end(), is_defined);
  if (const std::int64_t own = has_rows ? rows_of(inputs, targets) : plan.rows; own != plan.rows)
    throw Error(ErrorKind::invalid_argument,
                "pipeline step: " + std::to_string(own) + " rows on rank " + std::to_string(group.rank()) +
                    ", expected " + std::to_string(plan.rows) + " as on rank " + std::to_string(root));
  return plan.rows;
}

GroupPipeline::Impl::Result GroupPipeline::Impl::run(const Values& inputs, const Values& targets,
                                                     bool with_backward) {
  try {
    const Values own_targets = is_last() ? targets : Values();
    const std::int64_t rows = agreed_rows(inputs, own_targets, with_backward);
    StepContext context{
        .graph = graph,
        .schedule = schedule,
        .loss = options.loss,
        .devices = devices,
        .timeout = options.timeout,
        .data = split_rows(inputs, own_targets, rows, schedule.microbatches, options.mean_loss),
        .with_backward = with_backward,
        .parameters = &parameters,
        .input_type = options.sharded ? options.sharded->compute : std::nullopt};
    const GroupMessages messages(group, graph, schedule, credits, routes, context.exchange, options.timeout);
    context.send = [&](const ValueExchange::Key& key, Values values) {
      messages.send(key, std::move(values));
    };
    messages.receive(with_backward, context.data.count());
    if (units != nullptr) {
      units->take_replaced();
      units->train_thawed();
    }
    for (auto& [stage, each] : parameters) each.begin(with_backward);
    GroupReport report;
    report.spans.began_ns = nanoseconds_since_1970();
    report.spans.spans = RankStep(context, runners, group.rank()).run();
    if (const auto error = context.exchange->error(); error != nullptr) std::rethrow_exception(error);
    Result result;
    if (is_last() && !with_backward)
      result.outputs = joined_outputs(std::move(context.outputs), context.data.weights);
    if (is_last() && with_backward)
      for (const at::Tensor& loss : context.losses)
        report.losses.push_back(loss.defined() ? loss.cpu() : loss);
    const auto reports = reports_of_all(report);
    for (auto& [stage, each] : parameters) each.publish();
    if (units != nullptr) end_sharded_step(with_backward);
    end_minibatch(graph, true);

    std::vector<RankSpans> spans;
    for (const GroupReport& each : reports) spans.push_back(each.spans);
    result.step.timeline = timeline_of(spans);
    if (!with_backward) return result;
    for (std::size_t i = 0; i < context.data.count(); ++i) {
      const int rank = schedule.rank_of(graph.size() - 1, static_cast<int>(i));
      result.step.losses.push_back(reports[static_cast<std::size_t>(rank)].losses.at(i));
    }
    result.step.loss = weighted_sum(result.step.losses, context.data.weights);
    return result;
  } catch (const std::exception& error) {
    fail(error);
    throw;
  }
}

// Waits until all ranks have completed their actions. No value follows the last action of a rank, so that no
// other wait would notice that it hangs.
std::vector<GroupReport> GroupPipeline::Impl::reports_of_all(const GroupReport& own) const {
  try {
    return group.all_gather_object(own, options.timeout).get();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::deadline_exceeded) throw;
    const auto limit = std::chrono::duration_cast<std::chrono::milliseconds>(options.timeout);
    throw Error(error.kind(), "pipeline step: not all ranks have completed their actions within " +
                                  std::to_string(limit.count()) + " ms after rank " +
                                  std::to_string(group.rank()) + ": " + error.what());
  }
}

void GroupPipeline::Impl::end_sharded_step(bool with_backward) {
  std::vector<std::size_t> all(units->size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  for (const std::size_t unit : all) units->split(unit);
  units->wait_for_all();
  if (!with_backward) return;
  const auto has_gradients = units->exchange_gradients(all);
  for (const std::size_t unit : all) units->publish(unit, has_gradients[unit]);
}

// Joins the outputs of all replicas of the last stage. own: by micro-batch.
Values GroupPipeline::Impl::joined_outputs(std::vector<Values> own,
                                           const std::vector<double>& weights) const {
  if (const auto group_of_last = replicas.find(graph.size() - 1); group_of_last != replicas.end()) {
    std::vector<Values> sent = own;
    for (Values& part : sent)
      for (at::Tensor& output : part) output = output.cpu();
    const auto all = group_of_last->second.all_gather_object(sent, options.timeout).get();
    const auto device = own[0].empty() ? at::kCPU : own[0][0].device();
    for (std::size_t i = 0; i < own.size(); ++i) {
      own[i] = all[i % all.size()].at(i);
      for (at::Tensor& output : own[i]) output = output.to(device);
    }
  }
  return joined(own, weights);
}

void GroupPipeline::Impl::fail(const std::exception& error) {
  group.abort(error.what());  // first, so that other ranks take this error for the cause
  for (const auto& [stage, each] : replicas) each.abort(error.what());
  for (const auto& [key, route] : routes) route->abort(error.what());
  if (options.data_parallel) options.data_parallel->abort(error.what());
  if (units != nullptr) {
    units->abort(error.what());
    units->drop();
  }
  for (auto& [stage, runner] : runners) runner.clear();
  for (auto& [stage, each] : parameters) each.clear();
  end_minibatch(graph, false);
}

void GroupPipeline::Impl::set_groups(collectives::Group next,
                                     std::optional<collectives::Group> data_parallel) {
  agree(next, data_parallel, options.timeout, [&] {
    if (next.size() != group.size() || next.rank() != group.rank())
      refuse_pipeline("set_groups: rank " + std::to_string(next.rank()) + " of " +
                      std::to_string(next.size()) + ", expected rank " + std::to_string(group.rank()) +
                      " of " + std::to_string(group.size()) + " as before: its stages are here");
    if (data_parallel.has_value() != options.data_parallel.has_value())
      refuse_pipeline(std::string("set_groups: data_parallel is ") +
                      (data_parallel ? "given, expected none" : "missing, expected it") +
                      " as in the GroupPipelineOptions");
    return signature_of(graph, schedule, options);
  });
  group = std::move(next);
  options.data_parallel = std::move(data_parallel);
  replicas = groups_of_replicas(group, schedule);
  routes = routes_of(group, graph, schedule, options);
  if (units != nullptr) units->set_groups(groups_of_stages(*options.data_parallel, options.timeout));
  for (auto& [stage, each] : parameters) {
    const auto own = group_of(stage);
    each.clear();
    each.set_group(own);
    if (own) training::broadcast_parameters(*own, *graph[stage].module, 0);
  }
}

GroupPipeline::GroupPipeline(collectives::Group group, StageGraph graph, schedule::Schedule schedule,
                             GroupPipelineOptions options) {
  agree(group, options.data_parallel, options.timeout, [&] {
    schedule = complete(std::move(schedule), graph, options);
    check(group, graph, schedule, options);
    return signature_of(graph, schedule, options);
  });
  const auto data_parallel = options.data_parallel;
  bool is_same_on_all_ranks = true;  // an error of the routes
  try {
    DeviceRoutes routes = routes_of(group, graph, schedule, options);
    is_same_on_all_ranks = false;
    impl_ = std::make_unique<Impl>(group, std::move(graph), std::move(schedule), std::move(options),
                                   std::move(routes));
  } catch (const std::exception& error) {  // other ranks may wait for this one
    if (!is_same_on_all_ranks) group.abort(error.what());
    if (data_parallel) data_parallel->abort(error.what());
    throw;
  }
}

GroupPipeline::~GroupPipeline() = default;

GroupStep GroupPipeline::step(const Values& inputs, const Values& targets) {
  expect_backward(impl_->schedule);
  return impl_->run(inputs, targets, true).step;
}

void GroupPipeline::set_groups(collectives::Group group, std::optional<collectives::Group> data_parallel) {
  impl_->set_groups(std::move(group), std::move(data_parallel));
}

Values GroupPipeline::evaluate(const Values& inputs) { return impl_->run(inputs, {}, false).outputs; }

dist_optim::StepTarget& GroupPipeline::optimizer(int stage) {
  return optimizer_of("GroupPipeline", impl_->parameters, stage);
}

const sharded::ShardedUnits& GroupPipeline::sharded() const {
  if (impl_->units == nullptr)
    throw Error(ErrorKind::failed_precondition,
                "GroupPipeline::sharded: the stages are whole, expected GroupPipelineOptions::sharded");
  impl_->units->take_replaced();
  return *impl_->units;
}

const StageGraph& GroupPipeline::graph() const { return impl_->graph; }
const schedule::Schedule& GroupPipeline::schedule() const { return impl_->schedule; }

}  // namespace weft::pipeline

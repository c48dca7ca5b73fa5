#include <weft/parallel/pipeline/group_pipeline.h>

#include <weft/parallel/pipeline/internal/check_schedule.h>
#include <weft/parallel/pipeline/internal/in_flight.h>
#include <weft/parallel/pipeline/internal/rank_spans.h>
#include <weft/parallel/pipeline/internal/rank_step.h>
#include <weft/parallel/pipeline/leaf_gradients.h>
#include <weft/parallel/pipeline/remote/messages.h>
#include <weft/parallel/schedule/text.h>

#include <algorithm>
#include <deque>
#include <string>
#include <utility>

namespace weft::pipeline {

using rpc::Error;
using rpc::ErrorKind;
using Key = ValueExchange::Key;

namespace {

// A rank's report at the end of a step.
struct GroupReport {
  std::vector<at::Tensor> losses;  // of the last stage: by micro-batch, and of the batch
  at::Tensor loss;
  RankSpans spans;
};
WEFT_CODEC(GroupReport, losses, loss, spans)

// What the first rank that uses inputs tells the others.
struct GroupStepPlan {
  std::int64_t rows = 0;
  bool with_backward = true;
};
WEFT_CODEC(GroupStepPlan, rows, with_backward)

// Equal on ranks whose values fit together.
std::string signature_of(const StageGraph& graph, const schedule::Schedule& schedule) {
  std::string text = std::to_string(schedule.microbatches) + " micro-batches, edges";
  for (const schedule::Edge& edge : schedule.edges) {
    text += " " + std::to_string(edge.from) + "-" + std::to_string(edge.to) + ":";
    for (const int output : graph.outputs_of(edge)) text += std::to_string(output) + ",";
  }
  return text + " schedule " + schedule::save(schedule);
}

// Does not collide with tags of programs, which start at 0.
std::uint64_t tag_of(const std::vector<schedule::Edge>& edges, const Key& key) {
  const auto edge = std::lower_bound(edges.begin(), edges.end(), key.edge) - edges.begin();
  return (std::uint64_t{0x7069} << 48) | (std::uint64_t{key.gradient} << 47) |
         (static_cast<std::uint64_t>(edge) << 24) | static_cast<std::uint64_t>(key.microbatch);
}

// Messages are bounded by the end of the group and by the waits of stages.
constexpr collectives::Timeout no_timeout = std::chrono::nanoseconds::max();

void check(const collectives::Group& group, const StageGraph& graph, const schedule::Schedule& schedule,
           const GroupPipelineOptions& options) {
  const auto refuse = [](const std::string& text) {
    throw Error(ErrorKind::invalid_argument, "GroupPipeline: " + text);
  };
  if (!options.loss) refuse("no loss: give GroupPipelineOptions::loss");
  check_schedule("GroupPipeline", graph, schedule);
  if (schedule.ranks.size() != static_cast<std::size_t>(group.size()))
    refuse("a schedule of " + std::to_string(schedule.ranks.size()) + " ranks, expected one for each of " +
           std::to_string(group.size()) + " of the group");
  for (const int stage : stages_of(schedule, group.rank()))
    if (!graph.is_here(stage)) refuse("stage " + std::to_string(stage) + " of this rank has no module");
  refuse_shared_parameters("GroupPipeline", graph,
                           [&](int a, int b) { return schedule.rank_of(a, 0) == schedule.rank_of(b, 0); });
  const auto signatures = group.all_gather_object(signature_of(graph, schedule), options.timeout).get();
  for (std::size_t rank = 1; rank < signatures.size(); ++rank)
    if (signatures[rank] != signatures[0])
      refuse("rank " + std::to_string(rank) + " has other cuts or another schedule than rank 0: " +
             signatures[rank] + "; rank 0: " + signatures[0]);
}

schedule::Schedule with_edges(schedule::Schedule schedule, const StageGraph& graph) {
  schedule = computations_of(std::move(schedule));
  schedule.edges = graph.edges();
  return schedule;
}

}  // namespace

struct GroupPipeline::Impl {
  Impl(collectives::Group of, StageGraph given, schedule::Schedule computations, GroupPipelineOptions wanted)
      : group(std::move(of)),
        graph(std::move(given)),
        schedule(std::move(computations)),
        options(std::move(wanted)),
        credits(credits_of(schedule)),
        devices(options.device ? schedule.ranks.size() : 0, options.device.value_or(at::kCPU)) {
    for (const int stage : stages_of(schedule, group.rank())) {
      if (options.device) graph[stage].module->to(*options.device);
      runners.try_emplace(stage, graph[stage], gradients);
    }
    for (int stage = 0; stage < graph.size() && first_with_inputs < 0; ++stage)
      for (const Source& source : graph[stage].inputs)
        if (source.from < 0) first_with_inputs = stage;
  }

  // The reports of all ranks, and, without a backward, the outputs on the last stage's rank.
  std::pair<std::vector<GroupReport>, Values> run(const Values& inputs, const Values& targets,
                                                  bool with_backward);
  void receive(const std::shared_ptr<ValueExchange>& exchange, const std::shared_ptr<InFlight>& in_flight,
               bool with_backward, std::size_t microbatches);

  const collectives::Group group;
  const StageGraph graph;
  const schedule::Schedule schedule;
  const GroupPipelineOptions options;
  const Credits credits;
  const std::vector<c10::Device> devices;
  LeafGradients gradients;
  std::map<int, StageRunner> runners;
  int first_with_inputs = -1;  // the first stage that uses inputs of the step
};

namespace {

// Receives the values of one edge and direction, as many ahead of their use as there are credits.
class Receiver : public std::enable_shared_from_this<Receiver> {
 public:
  Receiver(collectives::Group group, std::shared_ptr<ValueExchange> exchange,
           std::shared_ptr<InFlight> in_flight, int from, std::size_t values_each,
           std::deque<std::pair<Key, std::uint64_t>> values)
      : group_(std::move(group)),
        exchange_(std::move(exchange)),
        in_flight_(std::move(in_flight)),
        from_(from),
        expected_(values_each),
        values_(std::move(values)) {}

  void next() {
    std::unique_lock lock(mutex_);
    if (values_.empty()) return;
    const auto [key, tag] = values_.front();
    values_.pop_front();
    lock.unlock();
    group_.recv_object<SentValues>(from_, tag, no_timeout)
        .then([self = shared_from_this(), key](rpc::Result<SentValues>&& came) {
          self->came(key, std::move(came));
        });
  }

 private:
  void came(const Key& key, rpc::Result<SentValues>&& result) {
    if (!result.ok()) {
      exchange_->fail(result.error());
      in_flight_->wake();
      return;
    }
    SentValues value = std::move(result).get();
    if (!value.has(expected_)) {
      exchange_->fail(std::make_exception_ptr(
          Error(ErrorKind::invalid_argument, "rank " + std::to_string(from_) + " sent " +
                                                 std::to_string(value.values.size()) + " values, expected " +
                                                 std::to_string(expected_))));
      in_flight_->wake();
      return;
    }
    rpc::Promise<void> used;
    used.future().then([self = shared_from_this()](rpc::Result<void>&& taken) {
      if (taken.ok()) self->next();
    });
    exchange_->put(key, std::move(value).take(), std::move(used));
  }

  const collectives::Group group_;
  const std::shared_ptr<ValueExchange> exchange_;
  const std::shared_ptr<InFlight> in_flight_;
  const int from_;
  const std::size_t expected_;  // in each message
  std::mutex mutex_;            // guards values_
  std::deque<std::pair<Key, std::uint64_t>> values_;
};

}  // namespace

void GroupPipeline::Impl::receive(const std::shared_ptr<ValueExchange>& exchange,
                                  const std::shared_ptr<InFlight>& in_flight, bool with_backward,
                                  std::size_t microbatches) {
  // In the order in which this rank uses them.
  std::map<std::pair<schedule::Edge, bool>, std::deque<std::pair<Key, std::uint64_t>>> expected;
  const auto expect = [&](const schedule::Edge& edge, int microbatch, bool gradient) {
    const Key key{edge, microbatch, gradient};
    const int from = schedule.rank_of(gradient ? edge.to : edge.from, microbatch);
    if (from != group.rank()) expected[{edge, gradient}].emplace_back(key, tag_of(schedule.edges, key));
  };
  for (const schedule::Action& each : schedule.ranks[static_cast<std::size_t>(group.rank())])
    schedule::for_each_part(each, [&](const schedule::Action& action) {
      using schedule::Op;
      if (action.microbatch < 0 || static_cast<std::size_t>(action.microbatch) >= microbatches) return;
      for (const schedule::Edge& edge : schedule.edges) {
        if (action.op == Op::forward && edge.to == action.stage) expect(edge, action.microbatch, false);
        if (with_backward && (action.op == Op::backward || action.op == Op::input_gradient) &&
            edge.from == action.stage)
          expect(edge, action.microbatch, true);
      }
    });
  for (auto& [direction, values] : expected) {
    const auto& [edge, gradient] = direction;
    const auto receiver = std::make_shared<Receiver>(group, exchange, in_flight,
                                                     schedule.rank_of(gradient ? edge.to : edge.from, 0),
                                                     graph.outputs_of(edge).size(), std::move(values));
    for (int ahead = credits.at(direction); ahead > 0; --ahead) receiver->next();
  }
}

std::pair<std::vector<GroupReport>, Values> GroupPipeline::Impl::run(const Values& inputs,
                                                                     const Values& targets,
                                                                     bool with_backward) {
  const int rank = group.rank();
  const int root = schedule.rank_of(std::max(first_with_inputs, 0), 0);
  const bool is_last = runners.contains(graph.size() - 1);
  const Values no_values;
  try {
    GroupStepPlan plan{.with_backward = with_backward};
    if (rank == root) plan.rows = rows_of(inputs, is_last ? targets : no_values);
    plan = group.broadcast_object(plan, root, options.timeout).get();
    if (plan.with_backward != with_backward)
      throw Error(ErrorKind::invalid_argument, "pipeline step: this rank and rank " + std::to_string(root) +
                                                   " do not both call step() or both evaluate()");
    const std::int64_t rows = plan.rows;
    const Values& own_targets = is_last ? targets : no_values;
    const auto is_defined = [](const at::Tensor& tensor) { return tensor.defined(); };
    const bool has_rows = std::any_of(inputs.begin(), inputs.end(), is_defined) ||
                          std::any_of(own_targets.begin(), own_targets.end(), is_defined);
    if (const std::int64_t own = has_rows ? rows_of(inputs, own_targets) : rows; own != rows)
      throw Error(ErrorKind::invalid_argument,
                  "pipeline step: " + std::to_string(own) + " rows on rank " + std::to_string(rank) +
                      ", expected " + std::to_string(rows) + " as on rank " + std::to_string(root));
    StepContext context{
        .graph = graph,
        .schedule = schedule,
        .loss = options.loss,
        .devices = devices,
        .timeout = options.timeout,
        .data = split_rows(inputs, own_targets, rows, schedule.microbatches, options.mean_loss),
        .with_backward = with_backward};
    const auto in_flight = std::make_shared<InFlight>(credits, *context.exchange);
    context.send = [&](const Key& key, Values values) {
      const int to = schedule.rank_of(key.gradient ? key.edge.from : key.edge.to, key.microbatch);
      if (to == rank) return context.exchange->put(key, std::move(values));
      in_flight->add(key, options.timeout);
      group.send_object(SentValues::of(values), to, tag_of(schedule.edges, key), no_timeout)
          .then([exchange = context.exchange, in_flight, key](rpc::Result<void>&& received) {
            if (!received.ok()) exchange->fail(received.error());
            in_flight->used(key);
          });
    };
    receive(context.exchange, in_flight, with_backward, context.data.count());
    GroupReport report;
    report.spans.began_ns = nanoseconds_since_1970();
    report.spans.spans = RankStep(context, runners, rank).run();
    if (const auto error = context.exchange->error(); error != nullptr) std::rethrow_exception(error);
    Values outputs;
    if (is_last && with_backward) {
      report.loss = weighted_sum(context.losses, context.data.weights).cpu();
      for (const at::Tensor& loss : context.losses) report.losses.push_back(loss.cpu());
    } else if (is_last) {
      outputs = joined(context.outputs);
    }
    auto reports = group.all_gather_object(report, no_timeout).get();
    gradients.publish();
    return {std::move(reports), std::move(outputs)};
  } catch (const std::exception& error) {
    for (auto& [stage, runner] : runners) runner.clear();
    gradients.clear();
    group.abort(error.what());
    throw;
  }
}

GroupPipeline::GroupPipeline(collectives::Group group, StageGraph graph, schedule::Schedule schedule,
                             GroupPipelineOptions options) {
  schedule = with_edges(std::move(schedule), graph);
  check(group, graph, schedule, options);
  impl_ = std::make_unique<Impl>(std::move(group), std::move(graph), std::move(schedule), std::move(options));
}

GroupPipeline::~GroupPipeline() = default;

GroupStep GroupPipeline::step(const Values& inputs, const Values& targets) {
  if (!has_backward(impl_->schedule))
    throw Error(ErrorKind::failed_precondition,
                "pipeline step: the schedule has no backward: call evaluate(), or give another schedule");
  auto [reports, outputs] = impl_->run(inputs, targets, true);
  GroupReport& last = reports[static_cast<std::size_t>(impl_->schedule.rank_of(impl_->graph.size() - 1, 0))];
  std::vector<RankSpans> spans;
  for (GroupReport& report : reports) spans.push_back(std::move(report.spans));
  return {std::move(last.losses), std::move(last.loss), timeline_of(spans)};
}

Values GroupPipeline::evaluate(const Values& inputs) { return impl_->run(inputs, {}, false).second; }

const StageGraph& GroupPipeline::graph() const { return impl_->graph; }
const schedule::Schedule& GroupPipeline::schedule() const { return impl_->schedule; }

}  // namespace weft::pipeline

#include <weft/parallel/pipeline/local_pipeline.h>

#include <weft/parallel/pipeline/internal/rank_threads.h>
#include <weft/parallel/pipeline/internal/value_exchange.h>
#include <weft/parallel/pipeline/stage_runner.h>
#include <weft/parallel/schedule/validate.h>
#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <string>
#include <utility>

namespace weft::pipeline {
namespace {

using rpc::Error;
using rpc::ErrorKind;
using schedule::Action;
using schedule::Op;

bool is_supported(const Action& action) {
  switch (action.op) {
    case Op::recompute:
    case Op::reduce_gradient:
    case Op::wait_reduce_gradient:
    case Op::unshard:
    case Op::reshard:
    case Op::stash:
    case Op::load:
    case Op::optimizer_step:
      return false;
    default:
      return true;
  }
}

void check(const StageGraph& graph, const schedule::Schedule& schedule, const LocalOptions& options) {
  const auto refuse = [](ErrorKind kind, const std::string& text) {
    throw Error(kind, "LocalPipeline: " + text);
  };
  if (!options.loss) refuse(ErrorKind::invalid_argument, "no loss: give LocalOptions::loss");
  if (schedule.stages() != graph.size())
    refuse(ErrorKind::invalid_argument, "a schedule of " + std::to_string(schedule.stages()) +
                                            " stages for a model of " + std::to_string(graph.size()));
  if (!options.devices.empty() && options.devices.size() != schedule.ranks.size())
    refuse(ErrorKind::invalid_argument, std::to_string(options.devices.size()) +
                                            " devices, expected one for each of " +
                                            std::to_string(schedule.ranks.size()) + " ranks, or none");
  schedule::validate(schedule);
  for (const auto& replicas : schedule.placement)
    if (replicas.size() > 1) refuse(ErrorKind::unsupported, "a schedule with replicated stages");
  for (const auto& actions : schedule.ranks)
    for (const Action& action : actions)
      schedule::for_each_part(action, [&](const Action& part) {
        if (!is_supported(part))
          refuse(ErrorKind::unsupported,
                 "the action " + schedule::to_string(part) + ": expected computations and messages alone");
      });
}

std::string text_of_current_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception of an unknown type";
  }
}

// The parts of a tensor by micro-batch.
std::vector<Values> parts_of(const Values& tensors, std::int64_t parts) {
  std::vector<Values> all(static_cast<std::size_t>(parts));
  for (const at::Tensor& tensor : tensors) {
    const auto split = at::tensor_split(tensor, parts);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].push_back(split[i]);
  }
  return all;
}

}  // namespace

// --- One step ---

namespace {

// What all ranks share in a step.
struct Step {
  const StageGraph& graph;
  const schedule::Schedule& schedule;
  const LocalOptions& options;
  const bool with_backward;
  const std::vector<Values> inputs, targets;  // by micro-batch
  const std::vector<double> weights;          // of the micro-batches' losses
  const std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();

  ValueExchange exchange = {};
  std::vector<at::Tensor> losses = std::vector<at::Tensor>(inputs.size());
  std::vector<Values> outputs = std::vector<Values>(inputs.size());  // of the model, without backward
};

// A rank's part of it.
class RankStep {
 public:
  RankStep(Step& step, std::vector<StageRunner>& runners, int rank)
      : step_(step),
        runners_(runners),
        actions_(step.schedule.ranks[static_cast<std::size_t>(rank)]),
        device_(step.options.devices.empty()
                    ? std::nullopt
                    : std::optional(step.options.devices[static_cast<std::size_t>(rank)])) {}

  std::vector<schedule::Span> run() {
    std::vector<schedule::Span> spans;
    for (std::size_t i = 0; i < actions_.size() && step_.exchange.error() == nullptr; ++i) {
      const double start = seconds();
      schedule::for_each_part(actions_[i], [&](const Action& action) { run(action); });
      if (schedule::is_computation(actions_[i].op) || actions_[i].op == Op::overlap)
        spans.push_back({i, start, seconds()});
    }
    return spans;
  }

 private:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - step_.began).count();
  }

  void run(const Action& action) {
    if (!schedule::is_computation(action.op) || action.microbatch >= static_cast<int>(step_.inputs.size()))
      return;
    if (action.op != Op::forward && !step_.with_backward) return;
    const auto fail = [&](ErrorKind kind) {
      step_.exchange.fail(std::make_exception_ptr(
          Error(kind, "pipeline step: stage " + std::to_string(action.stage) + ", micro-batch " +
                          std::to_string(action.microbatch) + ", " +
                          std::string(schedule::name_of(action.op)) + ": " + text_of_current_exception())));
    };
    try {
      compute(action);
    } catch (const Error& error) {
      fail(error.kind());
    } catch (...) {
      fail(ErrorKind::handler_failed);
    }
  }

  void compute(const Action& action) {
    StageRunner& runner = runners_[static_cast<std::size_t>(action.stage)];
    switch (action.op) {
      case Op::forward:
        return forward(runner, action.stage, action.microbatch);
      case Op::backward:
        take_gradients(runner, action.stage, action.microbatch);
        return give_gradients(action.stage, action.microbatch, runner.backward(action.microbatch));
      case Op::input_gradient:
        take_gradients(runner, action.stage, action.microbatch);
        return give_gradients(action.stage, action.microbatch, runner.input_gradient(action.microbatch));
      case Op::weight_gradient:
        return runner.weight_gradient(action.microbatch);
      default:
        return;
    }
  }

  at::Tensor here(const at::Tensor& tensor) const {
    if (!device_ || !tensor.defined()) return tensor;
    return tensor.detach().to(*device_).set_requires_grad(tensor.requires_grad());
  }

  void forward(StageRunner& runner, int stage, int microbatch) {
    std::map<Source, at::Tensor> values;
    for (const schedule::Edge& edge : step_.schedule.edges) {
      if (edge.to != stage) continue;
      const Values came = step_.exchange.take({edge, microbatch, false}, step_.options.timeout);
      const auto outputs = step_.graph.outputs_of(edge);
      for (std::size_t i = 0; i < outputs.size(); ++i) values[{edge.from, outputs[i]}] = here(came[i]);
    }
    Values inputs;
    for (const Source& source : step_.graph[stage].inputs)
      inputs.push_back(source.stage < 0 ? here(step_.inputs[static_cast<std::size_t>(microbatch)].at(
                                              static_cast<std::size_t>(source.output)))
                                        : values.at(source));
    Values outputs = runner.forward(microbatch, inputs, step_.with_backward);
    for (const schedule::Edge& edge : step_.schedule.edges)
      if (edge.from == stage) step_.exchange.put({edge, microbatch, false}, sent(edge, outputs));
    if (stage + 1 == step_.graph.size()) {
      const auto at = static_cast<std::size_t>(microbatch);
      if (!step_.with_backward) {
        step_.outputs[at] = std::move(outputs);
        return;
      }
      end(runner, microbatch, outputs);
    }
    if (step_.with_backward) outputs_[{stage, microbatch}] = std::move(outputs);
  }

  // Plain tensors, which require grad if a gradient for them is wanted.
  Values sent(const schedule::Edge& edge, const Values& outputs) const {
    Values values;
    for (const int output : step_.graph.outputs_of(edge)) {
      if (output >= static_cast<int>(outputs.size()))
        throw Error(ErrorKind::invalid_argument, "the stage gives " + std::to_string(outputs.size()) +
                                                     " outputs, and stage " + std::to_string(edge.to) +
                                                     " uses output " + std::to_string(output));
      const at::Tensor& value = outputs[static_cast<std::size_t>(output)];
      values.push_back(value.detach().set_requires_grad(step_.with_backward && value.requires_grad()));
    }
    return values;
  }

  void end(StageRunner& runner, int microbatch, const Values& outputs) {
    const auto at = static_cast<std::size_t>(microbatch);
    Values targets;
    for (const at::Tensor& target : step_.targets[at]) targets.push_back(here(target));
    const at::AutoGradMode grad(true);
    const at::Tensor loss = step_.options.loss(outputs, targets);
    if (loss.numel() != 1)
      throw Error(ErrorKind::invalid_argument,
                  "the loss has " + std::to_string(loss.numel()) + " elements, expected one");
    step_.losses[at] = loss.detach();
    runner.add_root(microbatch, loss, at::full_like(loss.detach(), step_.weights[at]));
  }

  void take_gradients(StageRunner& runner, int stage, int microbatch) {
    const Values outputs = std::move(outputs_.extract({stage, microbatch}).mapped());
    for (const schedule::Edge& edge : step_.schedule.edges) {
      if (edge.from != stage) continue;
      const Values came = step_.exchange.take({edge, microbatch, true}, step_.options.timeout);
      const auto used = step_.graph.outputs_of(edge);
      for (std::size_t i = 0; i < used.size(); ++i)
        if (came[i].defined())
          runner.add_root(microbatch, outputs[static_cast<std::size_t>(used[i])], here(came[i]));
    }
  }

  void give_gradients(int stage, int microbatch, const Values& gradients) {
    const auto& inputs = step_.graph[stage].inputs;
    for (const schedule::Edge& edge : step_.schedule.edges) {
      if (edge.to != stage) continue;
      Values sums;
      for (const int output : step_.graph.outputs_of(edge)) {
        at::Tensor sum;  // over the inputs that are this output
        for (std::size_t i = 0; i < inputs.size(); ++i)
          if (inputs[i] == Source{edge.from, output} && gradients[i].defined())
            sum = sum.defined() ? sum + gradients[i] : gradients[i];
        sums.push_back(std::move(sum));
      }
      step_.exchange.put({edge, microbatch, true}, std::move(sums));
    }
  }

  Step& step_;
  std::vector<StageRunner>& runners_;
  const std::vector<Action>& actions_;
  const std::optional<c10::Device> device_;
  std::map<std::pair<int, int>, Values> outputs_;  // by stage and micro-batch, until the backward
};

}  // namespace

// --- The pipeline ---

struct LocalPipeline::Impl {
  Impl(StageGraph given, schedule::Schedule computations, LocalOptions wanted)
      : graph(std::move(given)),
        schedule(std::move(computations)),
        options(std::move(wanted)),
        threads(static_cast<int>(schedule.ranks.size())) {
    for (int stage = 0; stage < graph.size(); ++stage) {
      if (!options.devices.empty())
        graph[stage].module->to(options.devices[static_cast<std::size_t>(schedule.rank_of(stage, 0))]);
      runners.emplace_back(graph[stage]);
    }
  }

  // The number of micro-batches that have rows.
  std::int64_t microbatches_of(const Values& inputs) const {
    std::int64_t rows = schedule.microbatches;
    for (const at::Tensor& input : inputs) {
      if (input.dim() == 0 || input.size(0) == 0)
        throw Error(ErrorKind::invalid_argument, "pipeline step: an input or target without rows");
      rows = std::min(rows, input.size(0));
    }
    return rows;
  }

  schedule::Timeline run(Step& step) {
    schedule::Timeline timeline;
    timeline.ranks.resize(schedule.ranks.size());
    const at::ThreadLocalState caller;
    threads.run([&](int rank) {
      const at::ThreadLocalStateGuard as_caller(caller);
      timeline.ranks[static_cast<std::size_t>(rank)] = RankStep(step, runners, rank).run();
    });
    if (const auto error = step.exchange.error(); error != nullptr) {
      for (StageRunner& runner : runners) runner.clear();
      std::rethrow_exception(error);
    }
    return timeline;
  }

  const StageGraph graph;
  const schedule::Schedule schedule;
  const LocalOptions options;
  std::vector<StageRunner> runners;  // by stage
  RankThreads threads;
};

LocalPipeline::LocalPipeline(StageGraph graph, schedule::Schedule schedule, LocalOptions options) {
  schedule.edges = graph.edges();
  check(graph, schedule, options);
  impl_ = std::make_unique<Impl>(std::move(graph), std::move(schedule), std::move(options));
}

LocalPipeline::~LocalPipeline() = default;

LocalStep LocalPipeline::step(const Values& inputs, const Values& targets) {
  Values all = inputs;
  all.insert(all.end(), targets.begin(), targets.end());
  const auto parts = impl_->microbatches_of(all);
  auto split = parts_of(inputs, parts);
  std::vector<double> weights;
  for (const Values& part : split)
    weights.push_back(impl_->options.mean_loss && !inputs.empty()
                          ? static_cast<double>(part[0].size(0)) / static_cast<double>(inputs[0].size(0))
                          : 1);
  Step step{impl_->graph,     impl_->schedule,          impl_->options,    true,
            std::move(split), parts_of(targets, parts), std::move(weights)};
  LocalStep result;
  result.timeline = impl_->run(step);
  for (StageRunner& runner : impl_->runners) runner.gradients().publish();
  result.losses = std::move(step.losses);
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    const at::Tensor weighted = result.losses[i] * step.weights[i];
    result.loss = result.loss.defined() ? result.loss + weighted : weighted;
  }
  return result;
}

Values LocalPipeline::evaluate(const Values& inputs) {
  const auto parts = impl_->microbatches_of(inputs);
  Step step{impl_->graph, impl_->schedule, impl_->options, false, parts_of(inputs, parts), {}, {}};
  impl_->run(step);
  Values outputs;
  for (std::size_t i = 0; i < step.outputs.front().size(); ++i) {
    std::vector<at::Tensor> rows;
    for (const Values& part : step.outputs) rows.push_back(part[i]);
    outputs.push_back(at::cat(rows));
  }
  return outputs;
}

const StageGraph& LocalPipeline::graph() const { return impl_->graph; }
const schedule::Schedule& LocalPipeline::schedule() const { return impl_->schedule; }

}  // namespace weft::pipeline

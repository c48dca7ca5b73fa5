#include <weft/parallel/pipeline/local_pipeline.h>

#include <weft/parallel/pipeline/deferred_batch_norm.h>
#include <weft/parallel/pipeline/internal/check_schedule.h>
#include <weft/parallel/pipeline/internal/rank_step.h>
#include <weft/parallel/pipeline/internal/stage_thread.h>
#include <weft/parallel/pipeline/microbatches.h>
#include <weft/parallel/schedule/lowering.h>
#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <latch>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>

namespace weft::pipeline {
namespace {

using rpc::Error;
using rpc::ErrorKind;

void check(const StageGraph& graph, const schedule::Schedule& schedule, const LocalOptions& options) {
  const auto refuse = [](ErrorKind kind, const std::string& text) {
    throw Error(kind, "LocalPipeline: " + text);
  };
  if (!options.loss) refuse(ErrorKind::invalid_argument, "no loss: give LocalOptions::loss");
  for (int stage = 0; stage < graph.size(); ++stage)
    if (!graph.is_here(stage))
      refuse(ErrorKind::invalid_argument,
             "stage " + std::to_string(stage) + " has no module, expected one for each stage");
  if (!options.devices.empty() && options.devices.size() != schedule.ranks.size())
    refuse(ErrorKind::invalid_argument, std::to_string(options.devices.size()) +
                                            " devices, expected one for each of " +
                                            std::to_string(schedule.ranks.size()) + " ranks, or none");
  check_schedule("LocalPipeline", graph, schedule,
                 {.steps = true, .has_optimizer = options.optimizer.has_value()});
  check_ties("LocalPipeline", graph, schedule);
  if (options.optimizer) refuse_shared_parameters("LocalPipeline", graph, [](int, int) { return false; });
}

// Call it before a module is moved.
void check_devices(const StageGraph& graph, const schedule::Schedule& schedule, const LocalOptions& options) {
  if (options.devices.empty()) return;
  std::unordered_map<c10::TensorImpl*, int> stage_of;
  const auto device_of = [&](int stage) {
    return options.devices[static_cast<std::size_t>(schedule.rank_of(stage, 0))];
  };
  for (int stage = 0; stage < graph.size(); ++stage) {
    std::vector<at::Tensor> tensors = graph[stage].module->parameters();
    for (const at::Tensor& buffer : graph[stage].module->buffers()) tensors.push_back(buffer);
    for (const at::Tensor& tensor : tensors) {
      const int first = stage_of.try_emplace(tensor.unsafeGetTensorImpl(), stage).first->second;
      if (device_of(first) != device_of(stage))
        throw Error(ErrorKind::unsupported, "LocalPipeline: stage " + std::to_string(first) + " on " +
                                                device_of(first).str() + " and stage " +
                                                std::to_string(stage) + " on " + device_of(stage).str() +
                                                " share a parameter or buffer, expected one device for both");
    }
  }
}

// Returns the current streams of the calling thread on the devices of the tensors and on the given devices.
std::vector<c10::Stream> current_streams(const Values& tensors, const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  const auto add = [&](c10::Device device) {
    if (device.is_cpu()) return;
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  };
  for (const at::Tensor& tensor : tensors)
    if (tensor.defined()) add(tensor.device());
  for (const c10::Device device : devices) add(device);
  return streams;
}

}  // namespace

struct LocalPipeline::Impl {
  Impl(StageGraph given, schedule::Schedule computations, LocalOptions wanted)
      : graph(std::move(given)), schedule(std::move(computations)), options(std::move(wanted)) {
    for (int stage = 0; stage < graph.size(); ++stage) {
      if (!options.devices.empty())
        graph[stage].module->to(options.devices[static_cast<std::size_t>(schedule.rank_of(stage, 0))]);
      const auto own = parameters.try_emplace(
          stage, *graph[stage].module, schedule, schedule.rank_of(stage, 0), stage,
          ParameterOptions{.optimizer = options.optimizer, .mean_loss = options.mean_loss});
      runners.try_emplace(stage, graph[stage], own.first->second.gradients(), threads.size() == 1);
    }
  }

  StepContext context(Microbatches data, bool with_backward) {
    return {.graph = graph,
            .schedule = schedule,
            .loss = options.loss,
            .devices = options.devices,
            .timeout = options.timeout,
            .data = std::move(data),
            .with_backward = with_backward,
            .parameters = &parameters,
            .activities = std::make_shared<Activities>(schedule.ranks.size())};
  }

  schedule::Timeline run(StepContext& step) {
    schedule::Timeline timeline;
    timeline.ranks.resize(schedule.ranks.size());
    const at::ThreadLocalState caller;
    const auto streams = current_streams(step.data.inputs.front(), options.devices);
    std::latch ended(static_cast<std::ptrdiff_t>(threads.size()));
    for (std::size_t rank = 0; rank < threads.size(); ++rank)
      threads[rank].post([&, rank] {
        {
          const at::ThreadLocalStateGuard as_caller(caller);
          const c10::MultiStreamGuard on_streams(streams);
          timeline.ranks[rank] = RankStep(step, runners, static_cast<int>(rank)).run();
        }
        ended.count_down();
      });
    ended.wait();
    if (const auto error = step.exchange->error(); error != nullptr) {
      clear();
      std::rethrow_exception(error);
    }
    end_minibatch(graph, true);
    return timeline;
  }

  void publish() {
    try {
      for (auto& [stage, each] : parameters) each.publish();
    } catch (...) {
      clear();
      throw;
    }
  }
  void clear() {
    for (auto& [stage, runner] : runners) runner.clear();
    for (auto& [stage, each] : parameters) each.clear();
    end_minibatch(graph, false);
  }

  const StageGraph graph;
  const schedule::Schedule schedule;
  const LocalOptions options;
  std::map<int, StageParameters> parameters;  // by stage
  std::map<int, StageRunner> runners;
  std::vector<StageThread> threads{schedule.ranks.size()};
};

LocalPipeline::LocalPipeline(StageGraph graph, schedule::Schedule schedule, LocalOptions options) {
  schedule.edges = graph.edges();
  if (options.optimizer && !has_steps(schedule)) schedule = schedule::add_optimizer_steps(schedule);
  check(graph, schedule, options);
  check_devices(graph, schedule, options);
  impl_ = std::make_unique<Impl>(std::move(graph), std::move(schedule), std::move(options));
}

LocalPipeline::~LocalPipeline() = default;

LocalStep LocalPipeline::step(const Values& inputs, const Values& targets) {
  expect_backward(impl_->schedule);
  StepContext step = impl_->context(split_rows(inputs, targets, rows_of(inputs, targets),
                                               impl_->schedule.microbatches, impl_->options.mean_loss),
                                    true);
  for (auto& [stage, each] : impl_->parameters) each.begin(true);
  LocalStep result;
  result.timeline = impl_->run(step);
  impl_->publish();
  result.loss = weighted_sum(step.losses, step.data.weights);
  result.losses = std::move(step.losses);
  return result;
}

Values LocalPipeline::evaluate(const Values& inputs) {
  StepContext step = impl_->context(
      split_rows(inputs, {}, rows_of(inputs, {}), impl_->schedule.microbatches, impl_->options.mean_loss),
      false);
  impl_->run(step);
  return joined(step.outputs, step.data.weights);
}

dist_optim::StepTarget& LocalPipeline::optimizer(int stage) {
  return optimizer_of("LocalPipeline", impl_->parameters, stage);
}

const StageGraph& LocalPipeline::graph() const { return impl_->graph; }
const schedule::Schedule& LocalPipeline::schedule() const { return impl_->schedule; }

}  // namespace weft::pipeline

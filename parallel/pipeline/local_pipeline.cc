#include <weft/parallel/pipeline/local_pipeline.h>

#include <weft/parallel/pipeline/internal/local_step.h>
#include <weft/parallel/pipeline/internal/rank_threads.h>
#include <weft/parallel/schedule/validate.h>
#include <weft/rpc/core/error.h>

#include <ATen/Functions.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
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

// Before a module is moved.
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
                                                " share a parameter or buffer");
    }
  }
}

bool is_backward(const Action& action) {
  return action.op == Op::overlap || (schedule::is_computation(action.op) && action.op != Op::forward);
}

// The parts of tensors by micro-batch. Each has its own version counter: an operator may change it in
// place.
std::vector<Values> parts_of(const Values& tensors, std::int64_t parts) {
  std::vector<Values> all(static_cast<std::size_t>(parts));
  for (const at::Tensor& tensor : tensors) {
    const auto split = at::tensor_split(tensor, parts);
    for (std::size_t i = 0; i < all.size(); ++i) all[i].push_back(split[i].variable_data());
  }
  return all;
}

// Of all tensors.
std::int64_t rows_of(const Values& inputs, const Values& targets) {
  std::optional<std::int64_t> rows;
  const auto look_at = [&](const Values& tensors, const char* what) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const auto refuse = [&](const std::string& text) {
        throw Error(ErrorKind::invalid_argument,
                    std::string("pipeline step: ") + what + " " + std::to_string(i) + text);
      };
      if (tensors[i].dim() == 0 || tensors[i].size(0) == 0) refuse(" has no rows");
      if (tensors[i].requires_grad())
        refuse(" requires grad, expected data: put what computes it into the first stage");
      if (tensors[i].size(0) != rows.value_or(tensors[i].size(0)))
        refuse(" has " + std::to_string(tensors[i].size(0)) + " rows, expected " + std::to_string(*rows) +
               " as the tensors before it");
      rows = tensors[i].size(0);
    }
  };
  look_at(inputs, "input");
  look_at(targets, "target");
  if (!rows) throw Error(ErrorKind::invalid_argument, "pipeline step: no inputs");
  return *rows;
}

// Those of the calling thread.
std::vector<c10::Stream> current_streams(const Values& tensors, const std::vector<c10::Device>& devices) {
  std::vector<c10::Stream> streams;
  const auto add = [&](c10::Device device) {
    if (device.is_cpu()) return;
    const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
    if (std::find(streams.begin(), streams.end(), stream) == streams.end()) streams.push_back(stream);
  };
  for (const at::Tensor& tensor : tensors) add(tensor.device());
  for (const c10::Device device : devices) add(device);
  return streams;
}

}  // namespace

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

  // With fewer rows than micro-batches each row is one.
  std::int64_t microbatches_of(std::int64_t rows) const {
    return std::min<std::int64_t>(schedule.microbatches, rows);
  }

  schedule::Timeline run(SharedStep& step) {
    schedule::Timeline timeline;
    timeline.ranks.resize(schedule.ranks.size());
    const at::ThreadLocalState caller;
    const auto streams = current_streams(step.inputs.front(), options.devices);
    threads.run([&](int rank) {
      const at::ThreadLocalStateGuard as_caller(caller);
      const c10::MultiStreamGuard on_streams(streams);
      timeline.ranks[static_cast<std::size_t>(rank)] = RankStep(step, runners, rank).run();
    });
    if (const auto error = step.exchange.error(); error != nullptr) {
      clear();
      std::rethrow_exception(error);
    }
    return timeline;
  }

  void publish() {
    try {
      for (StageRunner& runner : runners) runner.gradients().publish();
    } catch (...) {
      clear();
      throw;
    }
  }
  void clear() {
    for (StageRunner& runner : runners) runner.clear();
  }

  const StageGraph graph;
  const schedule::Schedule schedule;
  const LocalOptions options;
  const bool has_backward = std::any_of(
      schedule.ranks.begin(), schedule.ranks.end(),
      [](const auto& actions) { return std::any_of(actions.begin(), actions.end(), is_backward); });
  std::vector<StageRunner> runners;  // by stage
  RankThreads threads;
};

LocalPipeline::LocalPipeline(StageGraph graph, schedule::Schedule schedule, LocalOptions options) {
  schedule.edges = graph.edges();
  check(graph, schedule, options);
  check_devices(graph, schedule, options);
  impl_ = std::make_unique<Impl>(std::move(graph), std::move(schedule), std::move(options));
}

LocalPipeline::~LocalPipeline() = default;

LocalStep LocalPipeline::step(const Values& inputs, const Values& targets) {
  if (!impl_->has_backward)
    throw Error(ErrorKind::failed_precondition,
                "pipeline step: the schedule has no backward: call evaluate(), or give another schedule");
  const std::int64_t rows = rows_of(inputs, targets);
  const std::int64_t parts = impl_->microbatches_of(rows);
  std::vector<double> weights;
  for (std::int64_t i = 0; i < parts; ++i)  // as tensor_split() splits
    weights.push_back(impl_->options.mean_loss
                          ? static_cast<double>(rows / parts + (i < rows % parts)) / static_cast<double>(rows)
                          : 1);
  SharedStep step{impl_->graph,
                  impl_->schedule,
                  impl_->options,
                  true,
                  parts_of(inputs, parts),
                  parts_of(targets, parts),
                  std::move(weights)};
  LocalStep result;
  result.timeline = impl_->run(step);
  impl_->publish();
  result.losses = std::move(step.losses);
  for (std::size_t i = 0; i < result.losses.size(); ++i) {
    const at::Tensor weighted = result.losses[i] * step.weights[i];
    result.loss = result.loss.defined() ? result.loss + weighted : weighted;
  }
  return result;
}

Values LocalPipeline::evaluate(const Values& inputs) {
  const auto parts = impl_->microbatches_of(rows_of(inputs, {}));
  SharedStep step{impl_->graph, impl_->schedule, impl_->options, false, parts_of(inputs, parts), {}, {}};
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

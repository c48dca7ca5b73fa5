#include <weft/parallel/pipeline/stage_runner.h>

#include <weft/dist_autograd/engine/internal/generator_states.h>
#include <weft/dist_autograd/engine/internal/make_node.h>
#include <weft/dist_autograd/engine/internal/node_executor.h>
#include <weft/parallel/pipeline/internal/kept_buffers.h>
#include <weft/rpc/core/error.h>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/variable.h>

#include <string>
#include <utility>

namespace weft::pipeline {

using dist_autograd::make_node;
using torch::autograd::variable_list;

// The node before the inputs of a forward. It receives their gradients.
struct StageRunner::InputGradients final : torch::autograd::Node {
  variable_list apply(variable_list&& given) override {
    gradients = std::move(given);
    return {};
  }
  std::string name() const override { return "PipelineInput"; }
  variable_list gradients;
};

struct StageRunner::Microbatch {
  std::vector<int> place;  // of each input among those of `inputs`; -1: it requires no grad
  decltype(make_node<InputGradients>()) inputs;
  std::vector<std::pair<at::Tensor, at::Tensor>> roots;
  std::unique_ptr<dist_autograd::NodeExecutor> weights;  // after the input part
  // For a recomputation: the inputs and the state that the first forward used.
  Values kept;
  std::vector<std::uint32_t> versions;  // of these
  std::optional<at::ThreadLocalState> thread_state;
  std::optional<dist_autograd::SecondRun> second;
};

StageRunner::StageRunner(Stage stage, dist_autograd::GradientSink& gradients, bool is_alone)
    : stage_(std::move(stage)), is_alone_(is_alone), gradients_(gradients) {}
StageRunner::~StageRunner() = default;
StageRunner::StageRunner(StageRunner&&) noexcept = default;

Values StageRunner::forward(int microbatch, const Values& inputs, Keep keep) {
  if (keep == Keep::activations) {
    auto state = std::make_unique<Microbatch>();
    Values outputs = run_forward(*state, inputs, next(microbatch));
    microbatches_[microbatch] = std::move(state);
    return outputs;
  }
  const at::NoGradGuard no_grad;
  if (keep == Keep::nothing) return stage_.forward(inputs, next(microbatch));

  auto state = std::make_unique<Microbatch>();
  state->thread_state.emplace();
  state->kept = inputs;
  bool has_gradient = false;
  Values own;
  for (const at::Tensor& input : inputs) {
    has_gradient |= input.requires_grad();
    own.push_back(input.detach());
    state->versions.push_back(input._version());
  }
  Values used = inputs;  // on the devices on which the stage may draw random numbers
  for (const at::Tensor& parameter : stage_.module->parameters()) {
    has_gradient |= parameter.requires_grad();
    used.push_back(parameter);
  }
  for (const at::Tensor& buffer : stage_.module->buffers()) used.push_back(buffer);
  state->second.emplace(used, stage_.generators, is_alone_);
  Values outputs = stage_.forward(own, next(microbatch));
  state->second->note_first(outputs);
  for (at::Tensor& output : outputs)
    if (has_gradient && torch::autograd::isDifferentiableType(output.scalar_type()))
      output = output.detach().set_requires_grad(true);
  microbatches_[microbatch] = std::move(state);
  return outputs;
}

Values StageRunner::recompute(int microbatch) {
  Microbatch& state = *microbatches_.at(microbatch);
  for (std::size_t i = 0; i < state.kept.size(); ++i)
    if (state.kept[i]._version() != state.versions[i])
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "input " + std::to_string(i) +
                           " was changed in place, and the recomputation needs it: change a copy");
  const at::ThreadLocalStateGuard as_before(*state.thread_state);
  const KeptBuffers buffers(*stage_.module);
  Values outputs =
      state.second->run([&] { return run_forward(state, std::exchange(state.kept, {}), next(microbatch)); });
  buffers.restore();
  return outputs;
}

StepPosition StageRunner::next(int microbatch) {
  return {stage_.number, microbatch, std::exchange(is_first_, false)};
}

Values StageRunner::run_forward(Microbatch& state, const Values& inputs, const StepPosition& position) {
  const at::AutoGradMode grad(true);
  state.inputs = make_node<InputGradients>();
  Values own;
  int count = 0;
  for (const at::Tensor& input : inputs) {
    own.push_back(input.detach());
    state.place.push_back(input.requires_grad() ? count++ : -1);
    if (input.requires_grad())
      torch::autograd::impl::set_gradient_edge(
          own.back(), torch::autograd::Edge(state.inputs, state.inputs->add_input_metadata(own.back())));
  }
  return stage_.forward(own, position);
}

void StageRunner::add_root(int microbatch, const at::Tensor& root, at::Tensor gradient) {
  if (root.requires_grad()) microbatches_.at(microbatch)->roots.emplace_back(root, std::move(gradient));
}

Values StageRunner::run(int microbatch, bool in_parts) {
  Microbatch& state = *microbatches_.at(microbatch);
  auto executor = std::make_unique<dist_autograd::NodeExecutor>(
      gradients_, dist_autograd::ExecutorOptions{.defer_weights = in_parts});
  for (auto& [root, gradient] : std::exchange(state.roots, {})) executor->add_root(root, std::move(gradient));
  executor->plan();
  executor->run();
  variable_list of_inputs =
      std::exchange(state.inputs->gradients, {});  // the graph keeps the node until the end
  Values gradients;
  for (const int place : state.place) {
    const auto at = static_cast<std::size_t>(place);
    gradients.push_back(place >= 0 && at < of_inputs.size() ? of_inputs[at] : at::Tensor());
  }
  if (in_parts) {
    state.weights = std::move(executor);
    state.inputs = nullptr;
  } else {
    microbatches_.erase(microbatch);
  }
  return gradients;
}

Values StageRunner::backward(int microbatch) { return run(microbatch, false); }
Values StageRunner::input_gradient(int microbatch) { return run(microbatch, true); }

void StageRunner::weight_gradient(int microbatch) {
  microbatches_.at(microbatch)->weights->run_weights();
  microbatches_.erase(microbatch);
}

void StageRunner::clear() { microbatches_.clear(); }

}  // namespace weft::pipeline

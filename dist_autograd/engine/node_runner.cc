#include <weft/dist_autograd/engine/node_runner.h>

#include <weft/dist_autograd/engine/nested_leaves.h>

#include <ATen/DeviceGuard.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace weft::dist_autograd {

GradientSink::~GradientSink() = default;

namespace detail {
namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::AnomalyMode;
using torch::autograd::Node;
using torch::autograd::variable_list;

variable_list run_pre_hooks(Node& node, variable_list gradients) {
  // Tensor hooks change the gradient, retain_grad records what they left, and hooks of the node see that.
  for (const auto& hook : node.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (const auto& [output, hook] : node.retains_grad_hooks()) gradients = (*hook)(gradients);
  for (const auto& hook : node.pre_hooks()) gradients = (*hook)(gradients);
  return gradients;
}

// Only AccumulateGrad nodes and sinks of the layer above have no outgoing edge, so that the cast is rare.
AccumulateGrad* as_leaf(Node& node) {
  return node.num_outputs() == 0 ? dynamic_cast<AccumulateGrad*>(&node) : nullptr;
}

// AccumulateGrad's own conditions and, unless `.grad` is asked for, its place.
variable_list run_leaf(AccumulateGrad& leaf, variable_list gradients, GradientSink& sink,
                       const ExecutorOptions& options) {
  const at::Tensor& variable = leaf.variable;
  const bool wanted = gradients.at(0).defined() && variable.requires_grad();
  if (wanted && variable.grad_fn()) {
    throw std::logic_error("leaf variable has been moved into the graph interior");
  }
  if (!options.write_grad) {
    // The post-hooks' copy of the list refers to the gradient too.
    if (wanted) sink.accumulate(variable, std::move(gradients[0]), leaf.post_hooks().empty() ? 1 : 2);
    return {};
  }
  // The sink first: post-accumulate-grad hooks, which run inside the node, may look for the pass's gradient.
  // The sink must copy the gradient, which `.grad` may keep.
  if (wanted) sink.accumulate(variable, gradients[0], 0);
  return leaf(std::move(gradients));
}

void refuse_nan(const Node& node, const variable_list& outputs) {
  at::AutoGradMode no_grad(false);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].defined()) continue;
    at::OptionalDeviceGuard guard(at::device_of(outputs[i]));
    if (at::isnan(outputs[i])._is_any_true().item<bool>()) {
      throw std::runtime_error("Function '" + node.name() + "' returned nan values in its " +
                               std::to_string(i) + "th output.");
    }
  }
}

// Whether code that is not LibTorch's runs with this node: its own, or a hook's. LibTorch's generated nodes
// run no engine.
bool runs_foreign_code(Node& node, const AccumulateGrad* leaf) {
  const bool hooked =
      !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty();
  if (hooked || leaf != nullptr || node.num_outputs() == 0) return hooked;
  return !node.is_traceable() || dynamic_cast<torch::autograd::TraceableFunction*>(&node) == nullptr;
}

}  // namespace

variable_list run_node(Node& node, variable_list inputs, GradientSink& sink, const ExecutorOptions& options) {
  auto* leaf = as_leaf(node);
  std::optional<NestedLeaves> nested;
  if (runs_foreign_code(node, leaf)) nested.emplace();

  inputs = run_pre_hooks(node, std::move(inputs));
  if (!options.retain_graph) node.will_release_variables();

  auto call = [&](variable_list gradients) {
    return leaf ? run_leaf(*leaf, std::move(gradients), sink, options) : node(std::move(gradients));
  };
  // Post-hooks see the inputs too. Without them the node gets the only reference and may reuse the memory.
  const bool has_post_hooks = !node.post_hooks().empty();
  variable_list outputs = has_post_hooks ? call(inputs) : call(std::move(inputs));
  torch::autograd::validate_outputs(node.next_edges(), outputs, [&node](const std::string& fault) {
    return "Function " + node.name() + " returned an " + fault;
  });
  if (has_post_hooks) {
    for (const auto& hook : node.post_hooks()) outputs = (*hook)(outputs, inputs);
    if (outputs.size() != node.num_outputs()) {
      throw std::runtime_error("a post-hook of " + node.name() + " returned " +
                               std::to_string(outputs.size()) + " gradients instead of " +
                               std::to_string(node.num_outputs()));
    }
  }

  if (nested) nested->check(node, options.create_graph ? outputs : variable_list());
  if (!options.retain_graph) node.release_variables();
  if (AnomalyMode::is_enabled() && AnomalyMode::should_check_nan()) refuse_nan(node, outputs);
  return outputs;
}

}  // namespace detail
}  // namespace weft::dist_autograd

#include <weft/dist_autograd/engine/internal/node_runner.h>

#include <weft/dist_autograd/engine/internal/make_node.h>
#include <weft/dist_autograd/engine/internal/nested_leaves.h>

#include <ATen/DeviceGuard.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include <exception>
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
using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

variable_list run_pre_hooks(Node& node, variable_list gradients) {
  // Tensor hooks change the gradient, retain_grad records their result, and hooks of the node receive it.
  for (const auto& hook : node.tensor_pre_hooks()) gradients = (*hook)(gradients);
  for (const auto& [output, hook] : node.retains_grad_hooks()) gradients = (*hook)(gradients);
  for (const auto& hook : node.pre_hooks()) gradients = (*hook)(gradients);
  return gradients;
}

// Only AccumulateGrad nodes and sinks of the layer above have no outgoing edge, so that the cast is rare.
AccumulateGrad* as_leaf(Node& node) {
  return node.num_outputs() == 0 ? dynamic_cast<AccumulateGrad*>(&node) : nullptr;
}

// Checks the conditions of AccumulateGrad, and, unless `.grad` is requested, accumulates in its place.
variable_list run_leaf(AccumulateGrad& leaf, variable_list gradients, GradientSink& sink,
                       const ExecutorOptions& options) {
  const at::Tensor& variable = leaf.variable;
  const bool wanted = gradients.at(0).defined() && variable.requires_grad();
  if (wanted && variable.grad_fn()) {
    throw std::logic_error("leaf variable has been moved into the graph interior");
  }
  if (!options.write_grad) {
    // The post-hooks' copy of the list refers to the gradient, too.
    if (wanted) sink.accumulate(variable, std::move(gradients[0]), leaf.post_hooks().empty() ? 1 : 2);
    return {};
  }
  // The sink gets the gradient first: post-accumulate-grad hooks, which run inside the node, may look for
  // the pass's gradient. The sink must copy the gradient, which `.grad` may keep.
  if (wanted) sink.accumulate(variable, gradients[0], 0);
  return leaf(std::move(gradients));
}

void check_outputs(const Node& node, variable_list& outputs) {
  torch::autograd::validate_outputs(node.next_edges(), outputs, [&node](const std::string& fault) {
    return "Function " + node.name() + " returned an " + fault;
  });
}

void refuse_nan(const Node& node, const variable_list& outputs) {
  if (!AnomalyMode::is_enabled() || !AnomalyMode::should_check_nan()) return;
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

// Whether the node's code is not LibTorch's generated code, which runs no engine.
bool is_foreign(Node& node) {
  return !node.is_traceable() || dynamic_cast<torch::autograd::TraceableFunction*>(&node) == nullptr;
}

// Whether the node is foreign, or a hook runs with it.
bool runs_foreign_code(Node& node, const AccumulateGrad* leaf) {
  const bool hooked =
      !node.tensor_pre_hooks().empty() || !node.pre_hooks().empty() || !node.post_hooks().empty();
  if (hooked || leaf != nullptr || node.num_outputs() == 0) return hooked;
  return is_foreign(node);
}

// Runs a node within a task of LibTorch's engine. Node::task_should_compute_output(), which LibTorch's nodes
// ask before they compute a gradient, is true for the functions that the task was started for. Nothing else
// restricts a node without changing it: Node::set_next_edge() cannot put an edge back (its check of
// topological numbers refuses the edge if another node leads to this node), and a graph may be shared with
// other threads. A task costs some microseconds.
class PartTask final : public Node {
 public:
  static variable_list run(Node& node, variable_list gradients, edge_list wanted) {
    const at::Tensor start = at::empty({0});
    const auto task = make_node<PartTask>(node, std::move(gradients));
    task->add_input_metadata(start);
    wanted.emplace_back(task, 0);
    torch::autograd::Engine::get_default_engine().execute({Edge(task, 0)}, {start}, /*keep_graph=*/true,
                                                          /*create_graph=*/false, /*accumulate_grad=*/true,
                                                          wanted);
    if (task->error_ != nullptr) std::rethrow_exception(task->error_);
    return std::move(task->outputs_);
  }

  PartTask(Node& node, variable_list gradients) : node_(node), gradients_(std::move(gradients)) {}
  std::string name() const override { return "PartOfNode"; }
  variable_list apply(variable_list&&) override {
    try {
      outputs_ = node_(std::move(gradients_));
    } catch (...) {
      error_ = std::current_exception();  // the engine would report it, too
    }
    return {};
  }

 private:
  Node& node_;
  variable_list gradients_, outputs_;
  std::exception_ptr error_;
};

}  // namespace

bool runs_in_parts(Node& node) {
  return !is_foreign(node) && node.tensor_pre_hooks().empty() && node.retains_grad_hooks().empty() &&
         node.pre_hooks().empty() && node.post_hooks().empty();
}

variable_list run_part(Node& node, variable_list inputs, edge_list wanted, bool last,
                       const ExecutorOptions& options) {
  const bool release = last && !options.retain_graph;
  if (release) node.will_release_variables();
  variable_list outputs = PartTask::run(node, std::move(inputs), std::move(wanted));
  check_outputs(node, outputs);
  if (release) node.release_variables();
  refuse_nan(node, outputs);
  return outputs;
}

variable_list run_node(Node& node, variable_list inputs, GradientSink& sink, const ExecutorOptions& options) {
  auto* leaf = as_leaf(node);
  std::optional<NestedLeaves> nested;
  if (runs_foreign_code(node, leaf)) nested.emplace();

  inputs = run_pre_hooks(node, std::move(inputs));
  if (!options.retain_graph) node.will_release_variables();

  auto call = [&](variable_list gradients) {
    return leaf ? run_leaf(*leaf, std::move(gradients), sink, options) : node(std::move(gradients));
  };
  // Post-hooks receive the inputs, too. Without them the node gets the only reference and may reuse the
  // memory.
  const bool has_post_hooks = !node.post_hooks().empty();
  variable_list outputs = has_post_hooks ? call(inputs) : call(std::move(inputs));
  check_outputs(node, outputs);
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
  refuse_nan(node, outputs);
  return outputs;
}

}  // namespace detail
}  // namespace weft::dist_autograd

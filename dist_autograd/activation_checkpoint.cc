#include <weft/dist_autograd/activation_checkpoint.h>

#include <weft/dist_autograd/engine/internal/generator_states.h>
#include <weft/dist_autograd/engine/internal/make_node.h>
#include <weft/rpc/core/error.h>

#include <ATen/ThreadLocalState.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <unordered_set>

namespace weft::dist_autograd {
namespace {

using rpc::Error;
using rpc::ErrorKind;
using torch::autograd::Node;
using torch::autograd::variable_list;

// --- The node ---

class CheckpointBackward final : public Node {
 public:
  CheckpointBackward(CheckpointedForward forward, const std::vector<at::Tensor>& inputs,
                     std::vector<at::Tensor> parameters, SecondRun second)
      : forward_(std::move(forward)), parameters_(std::move(parameters)), second_(std::move(second)) {
    for (const at::Tensor& input : inputs) {
      saved_.emplace_back(input, false);
      add_edge(input);
    }
    for (const at::Tensor& parameter : parameters_) add_edge(parameter);
  }

  std::string name() const override { return "CheckpointBackward"; }
  void add_output(const at::Tensor& output) {
    add_input_metadata(output);
    differentiable_.push_back(true);
  }
  void skip_output() { differentiable_.push_back(false); }
  void release_variables() override {
    saved_.clear();
    forward_ = nullptr;
    parameters_.clear();
    released_ = true;
  }

  variable_list apply(variable_list&& gradients) override {
    if (released_)
      throw Error(ErrorKind::failed_precondition,
                  "activation_checkpoint: a second backward needs retain_graph in the first");
    if (at::GradMode::is_enabled())
      throw Error(
          ErrorKind::unsupported,
          "activation_checkpoint: a recorded backward (create_graph) cannot run its forward again: leave "
          "out the checkpoint");
    std::vector<at::Tensor> inputs, wanted;
    for (const auto& saved : saved_) {
      const at::Tensor input = saved.unpack();
      const bool requires_grad = input.defined() && input.requires_grad();
      inputs.push_back(input.defined() ? input.detach().set_requires_grad(requires_grad) : input);
      if (requires_grad) wanted.push_back(inputs.back());
    }
    wanted.insert(wanted.end(), parameters_.begin(), parameters_.end());
    const std::vector<at::Tensor> outputs = run_again(inputs);
    refuse_other_leaves(outputs, wanted);

    variable_list roots, of_roots;
    std::size_t next = 0;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (!differentiable_[i]) continue;
      const at::Tensor& gradient = gradients.at(next++);
      if (!gradient.defined() || !outputs[i].requires_grad()) continue;
      roots.push_back(outputs[i]);
      of_roots.push_back(gradient);
    }
    variable_list found(wanted.size());
    if (!roots.empty())
      found = torch::autograd::grad(roots, wanted, of_roots, /*retain_graph=*/false, /*create_graph=*/false,
                                    /*allow_unused=*/true);
    variable_list all;
    auto from = found.begin();
    for (const at::Tensor& input : inputs)
      all.push_back(input.defined() && input.requires_grad() ? std::move(*from++) : at::Tensor());
    for (std::size_t i = 0; i < parameters_.size(); ++i) all.push_back(std::move(*from++));
    return all;
  }

 private:
  void add_edge(const at::Tensor& tensor) {
    add_next_edge(tensor.defined() && tensor.requires_grad() ? torch::autograd::impl::gradient_edge(tensor)
                                                             : torch::autograd::Edge());
  }

  std::vector<at::Tensor> run_again(const std::vector<at::Tensor>& inputs) {
    at::ThreadLocalState as_before = thread_locals_;
    as_before.set_grad_mode(true);
    const at::ThreadLocalStateGuard guard(as_before);
    std::vector<at::Tensor> outputs = second_.run([&] { return forward_(inputs); });
    if (outputs.size() != differentiable_.size())
      throw Error(ErrorKind::failed_precondition,
                  "activation_checkpoint: the second run gave " + std::to_string(outputs.size()) +
                      " tensors, the first " + std::to_string(differentiable_.size()));
    return outputs;
  }

  // Rejects graphs with leaves other than the known ones, because their gradients would be lost.
  static void refuse_other_leaves(const std::vector<at::Tensor>& outputs,
                                  const std::vector<at::Tensor>& known) {
    std::unordered_set<const c10::TensorImpl*> leaves;
    for (const at::Tensor& leaf : known) leaves.insert(leaf.unsafeGetTensorImpl());
    std::vector<Node*> open;
    std::unordered_set<Node*> seen;
    for (const at::Tensor& output : outputs)
      if (output.defined() && output.grad_fn() != nullptr) open.push_back(output.grad_fn().get());
    while (!open.empty()) {
      Node* const node = open.back();
      open.pop_back();
      if (!seen.insert(node).second) continue;
      if (node->num_outputs() == 0) {
        const auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node);
        const std::string what = leaf == nullptr ? "the graph outside of it: " + node->name()
                                 : leaves.contains(leaf->variable.unsafeGetTensorImpl())
                                     ? std::string()
                                     : "a leaf of sizes " + c10::str(leaf->variable.sizes());
        if (!what.empty())
          throw Error(ErrorKind::failed_precondition,
                      "activation_checkpoint: the forward uses " + what +
                          ", which is neither an input nor a given parameter: its gradient would be lost");
      }
      for (const auto& edge : node->next_edges())
        if (edge.is_valid()) open.push_back(edge.function.get());
    }
  }

  CheckpointedForward forward_;
  std::vector<torch::autograd::SavedVariable> saved_;
  std::vector<at::Tensor> parameters_;
  std::vector<bool> differentiable_;  // of the outputs
  const SecondRun second_;
  at::ThreadLocalState thread_locals_;  // of the forward
  bool released_ = false;
};

}  // namespace

std::vector<at::Tensor> activation_checkpoint(CheckpointedForward forward, std::vector<at::Tensor> inputs,
                                              std::vector<at::Tensor> parameters,
                                              const std::vector<at::Generator>& generators) {
  for (std::size_t i = 0; i < parameters.size(); ++i)
    if (!parameters[i].defined() || !parameters[i].is_leaf())
      throw Error(ErrorKind::invalid_argument,
                  "activation_checkpoint: parameter " + std::to_string(i) +
                      (parameters[i].defined() ? " is the result of an operation" : " is undefined") +
                      ", expected leaves as parameters");
  std::erase_if(parameters, [](const at::Tensor& parameter) { return !parameter.requires_grad(); });
  const bool recorded =
      at::GradMode::is_enabled() &&
      (!parameters.empty() || std::any_of(inputs.begin(), inputs.end(), [](const auto& input) {
        return input.defined() && input.requires_grad();
      }));
  if (!recorded) return forward(inputs);

  SecondRun second(inputs, generators);
  std::vector<at::Tensor> outputs;
  {
    at::NoGradGuard no_grad;
    outputs = forward(inputs);
  }
  second.note_first(outputs);
  const auto node =
      make_node<CheckpointBackward>(std::move(forward), inputs, std::move(parameters), std::move(second));
  for (at::Tensor& output : outputs) {
    if (!output.defined() || !torch::autograd::isDifferentiableType(output.scalar_type())) {
      node->skip_output();
      continue;
    }
    // An input that is returned unchanged keeps its own node in the graph.
    output = output.detach();
    node->add_output(output);
    torch::autograd::impl::set_gradient_edge(output, torch::autograd::Edge(node, node->num_inputs() - 1));
  }
  return outputs;
}

}  // namespace weft::dist_autograd

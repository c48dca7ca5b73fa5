#include <weft/parallel/data_parallel/internal/gradient_hooks.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace weft::data_parallel {
namespace {

using torch::autograd::variable_list;

}  // namespace

// A partial backward does not execute all nodes.
bool is_executed(torch::autograd::Node* node) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes != nullptr && !nodes->contains(node)) return false;
  if (!is_partial_backward()) return true;
  const auto* some = torch::autograd::get_current_graph_task_exec_info();
  const auto info = some->find(node);
  return info != some->end() && info->second.needed_;
}

bool in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

bool is_partial_backward() {
  const auto* some = torch::autograd::get_current_graph_task_exec_info();
  return some != nullptr && !some->empty();
}

GradientHooks::GradientHooks(std::vector<NamedParameter> parameters, const LowPrecision* low_precision,
                             Accumulated accumulated)
    : parameters_(std::move(parameters)),
      low_precision_(low_precision),
      accumulated_(std::move(accumulated)),
      sources_(parameters_.size()) {
  refresh();
}

GradientHooks::~GradientHooks() {
  for (auto& sources : sources_) remove(sources);
}

void GradientHooks::remove(std::vector<Source>& sources) {
  for (const auto& [accumulator, hook] : sources) accumulator->del_post_hook(hook);
  sources.clear();
}

void GradientHooks::refresh() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const at::Tensor& tensor = parameters_[i].tensor;
    if (!tensor.requires_grad()) continue;
    auto own = torch::autograd::impl::grad_accumulator(tensor);
    if (!sources_[i].empty() && sources_[i].front().accumulator == own) continue;
    remove(sources_[i]);
    const auto add = [&](LowPrecision::Accumulator accumulator) {
      auto ran = [accumulated = accumulated_, parameter = tensor, i](const variable_list& outputs,
                                                                     const variable_list& gradients) {
        // LibTorch adds no gradient to a parameter that was frozen after the forward.
        accumulated(i, gradients.at(0).defined() && parameter.requires_grad());
        return outputs;
      };
      const auto hook = accumulator->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(ran)));
      sources_[i].push_back({std::move(accumulator), hook});
    };
    add(std::move(own));
    if (low_precision_ == nullptr) continue;
    if (auto of_copy = low_precision_->accumulator(tensor)) add(std::move(of_copy));
  }
}

std::vector<std::size_t> GradientHooks::expected() const {
  std::vector<std::size_t> expected;
  for (const auto& sources : sources_)
    expected.push_back(
        static_cast<std::size_t>(std::count_if(sources.begin(), sources.end(), [](const auto& source) {
          return is_executed(source.accumulator.get());
        })));
  return expected;
}

}  // namespace weft::data_parallel

#include <weft/parallel/data_parallel/gradient_hooks.h>

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <utility>

namespace weft::data_parallel {
namespace {

using torch::autograd::variable_list;
using Node = torch::autograd::Node;

// A partial backward does not execute all nodes.
bool is_executed(Node* node) {
  const auto* nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  if (nodes != nullptr && !nodes->contains(node)) return false;
  if (!is_partial_backward()) return true;
  const auto* some = torch::autograd::get_current_graph_task_exec_info();
  const auto info = some->find(node);
  return info != some->end() && info->second.needed_;
}

}  // namespace

bool in_backward() { return torch::autograd::get_current_graph_task_id() >= 0; }

bool is_partial_backward() {
  const auto* some = torch::autograd::get_current_graph_task_exec_info();
  return some != nullptr && !some->empty();
}

GradientHooks::GradientHooks(std::vector<NamedParameter> parameters, const LowPrecision* low_precision,
                             const Accumulated& accumulated)
    : parameters_(std::move(parameters)), sources_(parameters_.size()) {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto add = [&](LowPrecision::Accumulator accumulator) {
      auto ran = [accumulated, i](const variable_list& outputs, const variable_list& gradients) {
        accumulated(i, gradients.at(0).defined());
        return outputs;
      };
      const auto hook = accumulator->add_post_hook(
          std::make_unique<torch::autograd::utils::LambdaPostHook>(std::move(ran)));
      sources_[i].push_back({std::move(accumulator), hook});
    };
    add(torch::autograd::impl::grad_accumulator(parameters_[i].tensor));
    if (low_precision == nullptr) continue;
    if (auto of_copy = low_precision->accumulator(parameters_[i].tensor)) add(std::move(of_copy));
  }
}

GradientHooks::~GradientHooks() {
  for (const auto& sources : sources_)
    for (const auto& [accumulator, hook] : sources) accumulator->del_post_hook(hook);
}

void GradientHooks::check_unchanged() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, tensor, sparse] = parameters_[i];
    const auto& accumulator = sources_[i].front().accumulator;
    if (torch::autograd::impl::try_get_grad_accumulator(tensor) == accumulator) continue;
    const auto& before = accumulator->input_metadata(0);
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     c10::str("DistributedDataParallel: parameter ", name,
                              " has changed its dtype or device to ", tensor.scalar_type(), " on ",
                              tensor.device(), ", expected ", c10::typeMetaToScalarType(before.dtype()),
                              " on ", before.device(), ": move the module before it is wrapped"));
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

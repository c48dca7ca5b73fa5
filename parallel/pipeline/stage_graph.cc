#include <weft/parallel/pipeline/stage_graph.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <set>
#include <string>
#include <unordered_set>

namespace weft::pipeline {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, text);
}

}  // namespace

int StageGraph::add(Stage stage) {
  const std::string name = "StageGraph::add: stage " + std::to_string(size());
  if (stage.module == nullptr) refuse(name + " has no module, expected one");
  if (!stage.forward) refuse(name + " has no function, expected one");
  return append(std::move(stage));
}

int StageGraph::add_elsewhere(std::vector<Source> inputs) {
  return append({.module = nullptr, .forward = nullptr, .inputs = std::move(inputs)});
}

int StageGraph::append(Stage stage) {
  for (const Source& input : stage.inputs)
    if (input.from >= size() || input.from < -1 || input.output < 0)
      refuse("StageGraph::add: stage " + std::to_string(size()) + " uses output " +
             std::to_string(input.output) + " of stage " + std::to_string(input.from) +
             ", expected a stage before it, or step_input()");
  stage.number = size();
  stages_.push_back(std::move(stage));
  return size() - 1;
}

std::vector<schedule::Edge> StageGraph::edges() const {
  std::set<schedule::Edge> edges;
  for (int stage = 0; stage < size(); ++stage)
    for (const Source& input : (*this)[stage].inputs)
      if (input.from >= 0) edges.insert({input.from, stage});
  return {edges.begin(), edges.end()};
}

std::vector<int> StageGraph::outputs_of(schedule::Edge edge) const {
  std::set<int> outputs;
  for (const Source& input : (*this)[edge.to].inputs)
    if (input.from == edge.from) outputs.insert(input.output);
  return {outputs.begin(), outputs.end()};
}

void StageGraph::draw_from(int stage, std::vector<at::Generator> generators) {
  if (stage < 0 || stage >= size())
    refuse("StageGraph::draw_from: stage " + std::to_string(stage) + ", expected one of the " +
           std::to_string(size()) + " stages");
  stages_[static_cast<std::size_t>(stage)].generators = std::move(generators);
}

void StageGraph::tie(Tie parameters) {
  if (parameters.size() < 2)
    refuse("StageGraph::tie: " + std::to_string(parameters.size()) + " parameters, expected at least two");
  for (const StageParameter& each : parameters) {
    if (each.stage < 0 || each.stage >= size())
      refuse("StageGraph::tie: stage " + std::to_string(each.stage) + ", expected one of the " +
             std::to_string(size()) + " stages");
    if (is_here(each.stage)) parameter(each);
  }
  ties_.push_back(std::move(parameters));
}

at::Tensor StageGraph::parameter(const StageParameter& which) const {
  const auto parameters = (*this)[which.stage].module->named_parameters();
  const at::Tensor* found = parameters.find(which.name);
  if (found == nullptr)
    refuse("stage " + std::to_string(which.stage) + " has no parameter " + which.name +
           ", expected a name of its module's parameters");
  return *found;
}

std::vector<at::Tensor> StageGraph::parameters() const {
  std::vector<at::Tensor> all;
  std::unordered_set<c10::TensorImpl*> seen;
  for (const Stage& stage : stages_) {
    if (stage.module == nullptr) continue;
    for (const at::Tensor& parameter : stage.module->parameters())
      if (seen.insert(parameter.unsafeGetTensorImpl()).second) all.push_back(parameter);
  }
  return all;
}

void StageGraph::train(bool on) const {
  for (const Stage& stage : stages_)
    if (stage.module != nullptr) stage.module->train(on);
}

StageGraph split(const torch::nn::Sequential& model, const std::vector<int>& cuts) {
  std::vector<int> bounds{0};
  bounds.insert(bounds.end(), cuts.begin(), cuts.end());
  bounds.push_back(static_cast<int>(model->size()));
  for (std::size_t i = 1; i < bounds.size(); ++i)
    if (bounds[i] <= bounds[i - 1])
      refuse("split: stage " + std::to_string(i - 1) + " has the layers from " +
             std::to_string(bounds[i - 1]) + " to before " + std::to_string(bounds[i]) + " of " +
             std::to_string(model->size()) + ", expected at least one each");
  const std::vector<std::string> names = model->named_children().keys();
  StageGraph graph;
  for (std::size_t i = 1; i < bounds.size(); ++i) {
    torch::nn::Sequential part;
    for (int layer = bounds[i - 1]; layer < bounds[i]; ++layer)
      part->push_back(names[static_cast<std::size_t>(layer)], *(model->begin() + layer));
    graph.add({part.ptr(),
               [part](const Values& inputs) mutable { return Values{part->forward(inputs.at(0))}; },
               {i == 1 ? step_input(0) : Source{static_cast<int>(i) - 2}}});
  }
  return graph;
}

}  // namespace weft::pipeline

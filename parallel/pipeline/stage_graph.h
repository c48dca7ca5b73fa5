// StageGraph: a model as stages, with the values that each stage uses.
//
//   pipeline::StageGraph graph;   // a skip connection over the middle stage
//   const int first = graph.add(encoder, pipeline::step_input(0));
//   const int middle = graph.add(body, pipeline::Source{first});
//   graph.add({head,
//              [head](const Values& x) { return Values{head->forward(x[0] + x[1])}; },
//              {{middle}, {first}}});
//
// A torch::nn::Sequential is cut before some of its layers: split(model, {3, 6}). A stage may use the outputs
// of any stage before it, and the inputs of the step. The outputs of the last stage are those of the model.
// One module may be a part of several stages, if these are in one process. A stage does not change its
// outputs after it has returned them. Data only; an executor runs it. Thread-safety: values.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>

#include <concepts>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace weft::pipeline {

using Values = std::vector<at::Tensor>;

// Which forward of a step a stage, or a layer of it, computes.
struct StepPosition {
  int stage = 0;
  int microbatch = 0;
  // The first forward or recomputation of the stage since its weights changed, or since the start of the
  // step: a module that caches casts of its weights between micro-batches makes them now (is_first_microbatch
  // in Transformer Engine).
  bool is_first_microbatch = true;
};

// What a stage computes: a function of its inputs, (const Values&) -> Values, which may have the position as
// a second parameter, (const Values&, const StepPosition&) -> Values.
class StageForward {
 public:
  StageForward(std::nullptr_t = nullptr) {}
  template <class F>
    requires(!std::same_as<F, StageForward> &&
             std::is_invocable_r_v<Values, F&, const Values&, const StepPosition&>)
  StageForward(F forward) : call_(std::move(forward)) {}
  template <class F>
    requires(!std::same_as<F, StageForward> && std::is_invocable_r_v<Values, F&, const Values&> &&
             !std::is_invocable_v<F&, const Values&, const StepPosition&>)
  StageForward(F forward) {
    if constexpr (std::is_constructible_v<bool, F&> && !std::is_empty_v<F>)  // a std::function or a pointer
      if (!static_cast<bool>(forward)) return;
    call_ = [forward = std::move(forward)](const Values& inputs, const StepPosition&) mutable {
      return forward(inputs);
    };
  }

  // Computes the outputs of the stage. position: in the step, for random numbers.
  Values operator()(const Values& inputs, const StepPosition& position = {}) const {
    return call_(inputs, position);
  }
  explicit operator bool() const { return static_cast<bool>(call_); }

 private:
  std::function<Values(const Values&, const StepPosition&)> call_;
};

// An output of a stage (of a layer, in a LayerGraph).
struct Source {
  int from = 0;
  int output = 0;
  auto operator<=>(const Source&) const = default;
};
// A parameter of a stage, by its name in the module.
struct StageParameter {
  int stage = 0;
  std::string name;
};
// Parameters with equal values, each in separate memory: tied weights. An executor gives each of them the
// sum of the gradients of all, so that they stay equal.
using Tie = std::vector<StageParameter>;
// An input of the step; each micro-batch has a part of it along the first dimension.
inline Source step_input(int index) { return {-1, index}; }

// One stage of the model, and where its inputs come from.
struct Stage {
  std::shared_ptr<torch::nn::Module> module;  // has the parameters and buffers that `forward` uses
  // Computes the outputs from the inputs, both in order.
  StageForward forward;
  std::vector<Source> inputs;
  int number = 0;  // of the stage, as StageGraph::add() returns it
};

class WEFT_EXPORT StageGraph {
 public:
  // Returns the number of the stage. invalid_argument: no module, no function, or an input that is not of a
  // stage before.
  int add(Stage stage);
  // Of a module with forward(Tensor) -> Tensor.
  template <class Module>
    requires requires(Module& module, at::Tensor input) {
      { module.forward(input) } -> std::convertible_to<at::Tensor>;
    }
  int add(std::shared_ptr<Module> module, Source input) {
    auto forward = [&of = *module](const Values& inputs) { return Values{of.forward(inputs.at(0))}; };
    return add({std::move(module), std::move(forward), {input}});
  }

  // A stage that another process computes: it has no module. invalid_argument: an input that is not of a
  // stage before.
  int add_elsewhere(std::vector<Source> inputs);

  // invalid_argument: fewer than two, a stage that is not there, or a name that a stage of this process does
  // not have.
  void tie(Tie parameters);
  const std::vector<Tie>& ties() const { return ties_; }
  at::Tensor parameter(const StageParameter& which) const;  // of a stage that is here

  int size() const { return static_cast<int>(stages_.size()); }  // stages
  const Stage& operator[](int stage) const { return stages_[static_cast<std::size_t>(stage)]; }
  // Between stages, ascending; for schedule::Schedule::edges.
  std::vector<schedule::Edge> edges() const;
  // The outputs of edge.from that edge.to uses, ascending.
  std::vector<int> outputs_of(schedule::Edge edge) const;
  bool is_here(int stage) const { return (*this)[stage].module != nullptr; }
  // Of all stages that are here; a parameter that several stages use is there once.
  std::vector<at::Tensor> parameters() const;
  void train(bool on = true) const;

 private:
  int append(Stage stage);
  std::vector<Stage> stages_;
  std::vector<Tie> ties_;
};

// Stages of the layers of a Sequential; each entry of `cuts` is the first layer of the next stage. The layers
// take and give one tensor. invalid_argument: cuts that are not ascending layers of the model.
WEFT_EXPORT StageGraph split(const torch::nn::Sequential& model, const std::vector<int>& cuts);

}  // namespace weft::pipeline

// StageGraph: a model as stages, with the values that each stage uses.
//
//   pipeline::StageGraph graph;   // a skip connection over the middle stage
//   const int first = graph.add(encoder, pipeline::step_input(0));
//   const int middle = graph.add(body, pipeline::Source{first});
//   graph.add({head,
//              [head](const Values& x) { return Values{head->forward(x[0] + x[1])}; },
//              {{middle}, {first}}});
//
// split(model, {3, 6}) cuts a torch::nn::Sequential before layers 3 and 6. A stage may use the outputs of any
// earlier stage, and the inputs of the step. The outputs of the last stage are those of the model. One module
// may be a part of several stages if these are in one process. A stage must not change its outputs after it
// has returned them. The graph is data only; an executor runs it (LocalPipeline, Pipeline, GroupPipeline).
// Thread-safety: values.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <ATen/core/Generator.h>
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

// Describes one forward of a stage, or of a layer in it: its place in the step.
struct StepPosition {
  int stage = 0;
  int microbatch = 0;
  // Whether this is the stage's first forward or recomputation in the step, or the first after the stage's
  // weights have changed. A module that caches casts of its weights between micro-batches must compute the
  // casts again if this value is true (is_first_microbatch in Transformer Engine).
  bool is_first_microbatch = true;
};

// The forward function of a stage, from inputs to outputs: (const Values&) -> Values, or
// (const Values&, const StepPosition&) -> Values.
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

  // Computes the outputs of the stage. position: passed to functions with a second parameter, which may
  // derive random numbers from it.
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
// Tied weights: parameters with equal values, each in separate memory. The executor gives each of them the
// sum of all their gradients, so that they stay equal.
using Tie = std::vector<StageParameter>;
// The source for an input of the step. Each micro-batch has a part of the input along the first dimension.
inline Source step_input(int index) { return {-1, index}; }

// One stage of the model, and the sources of its inputs.
struct Stage {
  std::shared_ptr<torch::nn::Module> module;  // has the parameters and buffers that `forward` uses
  // Computes the outputs from the inputs, both in order.
  StageForward forward;
  std::vector<Source> inputs;
  // Generators of the program from which `forward` draws random numbers, such as DropoutGenerators::both().
  // A recomputation draws the same numbers from them. Nothing else may draw from them while the stage
  // computes.
  std::vector<at::Generator> generators = {};
  int number = 0;  // the stage's number, set by StageGraph::add()
};

class WEFT_EXPORT StageGraph {
 public:
  // Adds the stage and returns its number. invalid_argument: it has no module or no function, or an input is
  // neither step_input() nor an output of an earlier stage.
  int add(Stage stage);
  // Adds a stage whose module has forward(Tensor) -> Tensor.
  template <class Module>
    requires requires(Module& module, at::Tensor input) {
      { module.forward(input) } -> std::convertible_to<at::Tensor>;
    }
  int add(std::shared_ptr<Module> module, Source input) {
    auto forward = [&of = *module](const Values& inputs) { return Values{of.forward(inputs.at(0))}; };
    return add({std::move(module), std::move(forward), {input}});
  }

  // Adds a stage without a module, which another process computes. invalid_argument: as for add().
  int add_elsewhere(std::vector<Source> inputs);

  // Sets Stage::generators of a stage, such as one of split().
  void draw_from(int stage, std::vector<at::Generator> generators);

  // Ties these parameters. invalid_argument: fewer than two parameters, a number that no stage has, or a name
  // that the module of a stage in this process does not have.
  void tie(Tie parameters);
  const std::vector<Tie>& ties() const { return ties_; }
  at::Tensor parameter(const StageParameter& which) const;  // the stage must be in this process

  int size() const { return static_cast<int>(stages_.size()); }  // the number of stages
  const Stage& operator[](int stage) const { return stages_[static_cast<std::size_t>(stage)]; }
  // The edges between stages, ascending, for schedule::Schedule::edges.
  std::vector<schedule::Edge> edges() const;
  // The outputs of edge.from that edge.to uses, ascending.
  std::vector<int> outputs_of(schedule::Edge edge) const;
  // Whether this process computes the stage.
  bool is_here(int stage) const { return (*this)[stage].module != nullptr; }
  // The parameters of all stages in this process. A parameter that several stages use is in the list once.
  std::vector<at::Tensor> parameters() const;
  void train(bool on = true) const;

 private:
  int append(Stage stage);
  std::vector<Stage> stages_;
  std::vector<Tie> ties_;
};

// Cuts a Sequential into stages; each entry of `cuts` is the first layer of the next stage. Each layer must
// have one tensor as input and one as output. invalid_argument: the cuts are not ascending, or a stage would
// have no layers.
WEFT_EXPORT StageGraph split(const torch::nn::Sequential& model, const std::vector<int>& cuts);

}  // namespace weft::pipeline

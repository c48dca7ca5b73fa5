// LayerGraph: a model as named layers, each of which is built on the worker that computes it.
//
//   pipeline::LayerGraph layers() {
//     pipeline::LayerGraph model;
//     model.add("conv", [] { return torch::nn::Conv2d(3, 64, 7); });   // reads the step's first input
//     model.add("relu", [] { return torch::nn::ReLU(); });             // reads the layer before
//     const int trunk = model.add("trunk", [] { return Trunk(64); });
//     model.add("head", [] { return Head(64); });
//     return model;
//   }
//
// A layer may use the outputs of any earlier layer, and the inputs of the step, so that skip connections are
// possible. Layers may share weights: model.tie({"embedding.weight", "head.weight"}). cut() divides a
// LayerGraph into stages. Data only; thread-safety: values.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>

namespace weft::pipeline {

// A layer that was built on its worker.
struct BuiltLayer {
  std::shared_ptr<torch::nn::Module> module;
  StageForward forward;
  std::vector<at::Generator> generators = {};  // from which `forward` draws (Stage::generators)
};

// A layer, and how a worker builds it.
struct Layer {
  std::string name;  // the prefix of its parameters' names
  std::function<BuiltLayer()> build;
  std::vector<Source> inputs;  // Source::from is the number of a layer
};

class WEFT_EXPORT LayerGraph {
 public:
  // Adds a layer and returns its number. invalid_argument: it has no `build`, its name is empty or exists
  // already, or an input is not an output of an earlier layer.
  int add(Layer layer);
  // make: returns a module, or a holder of one, with forward(Tensor) -> Tensor. Its input is the output of
  // the previous layer; for the first layer, the step's first input.
  template <class Make>
    requires std::invocable<Make>
  int add(std::string name, Make make) {
    return add(std::move(name), std::move(make), size() == 0 ? step_input(0) : Source{size() - 1});
  }
  template <class Make>
    requires std::invocable<Make>
  int add(std::string name, Make make, Source input) {
    auto build = [make = std::move(make)] {
      auto module = pointer_to(make());
      StageForward forward = [&of = *module](const Values& inputs) {
        return Values{of.forward(inputs.at(0))};
      };
      return BuiltLayer{std::move(module), std::move(forward)};
    };
    return add({std::move(name), std::move(build), {input}});
  }

  // Ties parameters, named LAYER.PARAMETER: they start with the value of the first one and stay equal, even
  // on different workers. Each has separate memory. invalid_argument: fewer than two parameters, a parameter
  // twice, an unknown layer, or a parameter of another tie.
  void tie(std::vector<std::string> parameters);
  const std::vector<std::vector<std::string>>& ties() const { return ties_; }

  // The number of layers, a layer by its number, and the names of the layers in the order of their numbers.
  int size() const { return static_cast<int>(layers_.size()); }
  const Layer& operator[](int layer) const { return layers_[static_cast<std::size_t>(layer)]; }
  std::vector<std::string> names() const;

 private:
  template <class Made>
  static auto pointer_to(Made made) {
    if constexpr (requires { made.ptr(); }) {
      return made.ptr();
    } else {
      return made;
    }
  }
  std::vector<Layer> layers_;
  std::vector<std::vector<std::string>> ties_;
};

// How cut() divides a model into stages.
struct CutOptions {
  std::vector<int> cuts;  // ascending: each is the first layer of the next stage
  // The stages that are built; the others have no module. nullopt: all.
  std::optional<std::set<int>> built = {};
  // If it is set, each layer draws its initial values from a seed that is derived from this one, so that the
  // values do not depend on the cuts. cut() uses the process's generator and restores its state: no other
  // thread may draw from it during the call. nullopt: layers draw from the generator's present state.
  std::optional<std::uint64_t> seed = {};
};

// The stages of a rank, for CutOptions::built.
WEFT_EXPORT std::set<int> stages_of(const schedule::Schedule& schedule, int rank);

// Stages of consecutive layers. The module of a stage has its layers as submodules, by their names. The
// outputs of a stage are those that later stages use, in the order of (layer, output); those of the last
// stage are the outputs of the last layer. invalid_argument: more stages than layers, cuts that are not
// ascending layers, a tie with an unknown parameter, tied parameters of different shapes, or, without
// CutOptions::seed, a tie with a stage that is not built.
WEFT_EXPORT StageGraph cut(const LayerGraph& layers, const CutOptions& options);

}  // namespace weft::pipeline

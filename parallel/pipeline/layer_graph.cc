#include <weft/parallel/pipeline/layer_graph.h>

#include <weft/dist_autograd/engine/internal/generator_states.h>
#include <weft/rpc/core/error.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

namespace weft::pipeline {
namespace {

[[noreturn]] void refuse_layers(const std::string& text) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "pipeline layers: " + text);
}

BuiltLayer built(const Layer& layer, int number, std::optional<std::uint64_t> seed) {
  std::optional<dist_autograd::DrawsAgain> generator_is_restored;
  if (seed) {
    generator_is_restored.emplace(dist_autograd::GeneratorStates::of({}));
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    std::lock_guard lock(generator.mutex());
    // The odd factors give neighbouring seeds and layers very different generator seeds.
    generator.set_current_seed(*seed * 0x9e3779b97f4a7c15 +
                               static_cast<std::uint64_t>(number) * 0xbf58476d1ce4e5b9);
  }
  return layer.build();
}

// A stage with the layers from `first` to `last` - 1.
struct Part {
  int first = 0, last = 0;
  std::vector<Source> inputs;   // of other layers, and of the step; ascending
  std::vector<Source> outputs;  // of these layers, used by later stages; ascending
};

std::vector<Part> parts_of(const LayerGraph& layers, const std::vector<int>& cuts) {
  const auto count = static_cast<std::size_t>(layers.size());
  if (cuts.size() >= count)
    refuse_layers(std::to_string(cuts.size() + 1) + " stages, but only " + std::to_string(count) +
                  (count == 1 ? " layer" : " layers") + ": expected at most one stage for each layer");
  std::vector<Part> parts;
  int first = 0;
  for (std::size_t i = 0; i <= cuts.size(); ++i) {
    const int last = i < cuts.size() ? cuts[i] : layers.size();
    if (last <= first || last > layers.size())
      refuse_layers("a stage of the layers " + std::to_string(first) + " to " + std::to_string(last - 1) +
                    ": expected ascending cuts between 1 and " + std::to_string(layers.size() - 1));
    parts.push_back({.first = first, .last = last});
    first = last;
  }
  std::set<Source> used;  // by a later stage
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) {
    for (const Source& source : used)
      if (source.from >= part->first && source.from < part->last) part->outputs.push_back(source);
    std::set<Source> inputs;
    for (int layer = part->first; layer < part->last; ++layer)
      for (const Source& source : layers[layer].inputs)
        if (source.from < part->first) inputs.insert(source);
    part->inputs.assign(inputs.begin(), inputs.end());
    used.insert(inputs.begin(), inputs.end());
  }
  return parts;
}

// Computes the layers of a part.
class PartForward {
 public:
  PartForward(const LayerGraph& layers, Part part, bool is_last, std::vector<StageForward> forwards)
      : part_(std::move(part)), is_last_(is_last), forwards_(std::move(forwards)) {
    for (int layer = part_.first; layer < part_.last; ++layer) {
      names_.push_back(layers[layer].name);
      sources_.push_back(layers[layer].inputs);
    }
    for (std::size_t i = 0; i < sources_.size(); ++i)
      for (const Source& source : sources_[i]) last_use_[source] = i;
  }

  Values operator()(const Values& inputs, const StepPosition& position) const {
    std::map<Source, at::Tensor> values;
    for (std::size_t i = 0; i < inputs.size(); ++i) values[part_.inputs[i]] = inputs[i];
    Values outputs;
    for (std::size_t i = 0; i < forwards_.size(); ++i) {
      Values given;
      for (const Source& source : sources_[i]) given.push_back(at(values, source, i));
      // Releases values that no later layer uses. Then this layer may change its input in place, and the
      // memory is freed.
      for (const Source& source : sources_[i])
        if (last_use_.at(source) == i && !is_output(source)) values.erase(source);
      outputs = forwards_[i](std::exchange(given, {}), position);
      const int layer = part_.first + static_cast<int>(i);
      for (std::size_t output = 0; output < outputs.size(); ++output)
        values[{layer, static_cast<int>(output)}] = outputs[output];
    }
    if (is_last_) return outputs;
    outputs.clear();
    for (const Source& source : part_.outputs) outputs.push_back(at(values, source, forwards_.size()));
    return outputs;
  }

 private:
  bool is_output(const Source& source) const {
    return std::binary_search(part_.outputs.begin(), part_.outputs.end(), source);
  }
  at::Tensor at(const std::map<Source, at::Tensor>& values, const Source& source, std::size_t user) const {
    const auto found = values.find(source);
    if (found != values.end()) return found->second;
    const auto given = static_cast<std::size_t>(source.from - part_.first);
    refuse_layers("layer " + names_[given] + " has no output " + std::to_string(source.output) + ", which " +
                  (user < names_.size() ? "layer " + names_[user] : "a later stage") +
                  " uses: expected an output of the layer");
  }

  Part part_;
  bool is_last_;
  std::vector<StageForward> forwards_;
  std::vector<std::string> names_;
  std::vector<std::vector<Source>> sources_;
  std::map<Source, std::size_t> last_use_;
};

// The inputs of a stage, as outputs of stages.
std::vector<Source> stage_inputs(const std::vector<Part>& parts, const Part& part) {
  std::vector<Source> inputs;
  for (const Source& source : part.inputs) {
    if (source.from < 0) {
      inputs.push_back(source);
      continue;
    }
    const auto owner = std::find_if(parts.begin(), parts.end(), [&](const Part& each) {
      return source.from >= each.first && source.from < each.last;
    });
    const auto output = std::lower_bound(owner->outputs.begin(), owner->outputs.end(), source);
    inputs.push_back(
        {static_cast<int>(owner - parts.begin()), static_cast<int>(output - owner->outputs.begin())});
  }
  return inputs;
}

// The layer in a parameter's name LAYER.PARAMETER.
int layer_of(const LayerGraph& layers, const std::string& parameter) {
  const std::string name = parameter.substr(0, parameter.find('.'));
  for (int layer = 0; layer < layers.size(); ++layer)
    if (layers[layer].name == name) return layer;
  refuse_layers("the parameter " + parameter + " of a tie: expected LAYER.PARAMETER");
}

// The initial value of a parameter whose stage is not built here.
at::Tensor value_elsewhere(const LayerGraph& layers, const std::string& parameter,
                           std::optional<std::uint64_t> seed) {
  const int layer = layer_of(layers, parameter);
  const auto parameters = built(layers[layer], layer, seed).module->named_parameters();
  const at::Tensor* found = parameters.find(parameter.substr(layers[layer].name.size() + 1));
  if (found == nullptr)
    refuse_layers("layer " + layers[layer].name + " has no parameter " + parameter +
                  ", expected a name of its parameters");
  return *found;
}

void add_ties(const LayerGraph& layers, const std::vector<Part>& parts, std::optional<std::uint64_t> seed,
              StageGraph& graph) {
  for (const auto& names : layers.ties()) {
    Tie tie;
    for (const std::string& name : names) {
      const int layer = layer_of(layers, name);
      const auto owner =
          std::find_if(parts.begin(), parts.end(), [&](const Part& part) { return layer < part.last; });
      tie.push_back({static_cast<int>(owner - parts.begin()), name});
    }
    graph.tie(tie);
    const auto is_here = [&](const StageParameter& each) { return graph.is_here(each.stage); };
    if (!seed && std::any_of(tie.begin(), tie.end(), is_here) &&
        !std::all_of(tie.begin(), tie.end(), is_here))
      refuse_layers("the tied parameters " + names.front() + " and " + names.back() +
                    " are on several workers: give CutOptions::seed, so that they begin equal");
    at::Tensor value;
    for (const StageParameter& each : tie) {
      if (!graph.is_here(each.stage)) continue;
      if (!value.defined())
        value = graph.is_here(tie[0].stage) ? graph.parameter(tie[0])
                                            : value_elsewhere(layers, tie[0].name, seed);
      const at::Tensor parameter = graph.parameter(each);
      if (parameter.sizes() != value.sizes())
        refuse_layers("the tied parameters " + tie[0].name + " and " + each.name + " have the shapes " +
                      c10::str(value.sizes(), " and ", parameter.sizes()) + ", expected equal shapes");
      const at::NoGradGuard no_grad;
      if (!parameter.is_same(value)) parameter.copy_(value);
    }
  }
}

}  // namespace

int LayerGraph::add(Layer layer) {
  if (!layer.build) refuse_layers("layer " + layer.name + " has no function that builds it, expected one");
  if (layer.name.empty() || layer.name.find('.') != std::string::npos)
    refuse_layers("the name '" + layer.name + "': expected a name without dots");
  for (const Layer& other : layers_)
    if (other.name == layer.name)
      refuse_layers("two layers have the name " + layer.name + ", expected unique names");
  for (const Source& source : layer.inputs)
    if (source.from >= size() || source.output < 0 || source.from < -1)
      refuse_layers("layer " + layer.name + " uses output " + std::to_string(source.output) + " of layer " +
                    std::to_string(source.from) + ": expected an output of one of the " +
                    std::to_string(size()) + " layers before, or an input of the step");
  layers_.push_back(std::move(layer));
  return size() - 1;
}

void LayerGraph::tie(std::vector<std::string> parameters) {
  if (parameters.size() < 2)
    refuse_layers("a tie has " + std::to_string(parameters.size()) + " parameters, expected at least 2");
  std::set<std::string> names;
  for (const std::string& parameter : parameters)
    if (!names.insert(parameter).second)
      refuse_layers("a tie names " + parameter + " twice, expected different parameters");
  for (const std::string& parameter : parameters) {
    layer_of(*this, parameter);
    for (const auto& other : ties_)
      if (std::find(other.begin(), other.end(), parameter) != other.end())
        refuse_layers("the parameter " + parameter + " is in two ties, expected it in one");
  }
  ties_.push_back(std::move(parameters));
}

std::vector<std::string> LayerGraph::names() const {
  std::vector<std::string> all;
  for (const Layer& layer : layers_) all.push_back(layer.name);
  return all;
}

std::set<int> stages_of(const schedule::Schedule& schedule, int rank) {
  std::set<int> stages;
  for (int stage = 0; stage < schedule.stages(); ++stage) {
    const auto& replicas = schedule.placement[static_cast<std::size_t>(stage)];
    if (std::find(replicas.begin(), replicas.end(), rank) != replicas.end()) stages.insert(stage);
  }
  return stages;
}

StageGraph cut(const LayerGraph& layers, const CutOptions& options) {
  if (layers.size() == 0) refuse_layers("a model without layers, expected at least one");
  const std::vector<Part> parts = parts_of(layers, options.cuts);
  StageGraph graph;
  for (std::size_t stage = 0; stage < parts.size(); ++stage) {
    const Part& part = parts[stage];
    std::vector<Source> inputs = stage_inputs(parts, part);
    if (options.built && !options.built->contains(static_cast<int>(stage))) {
      graph.add_elsewhere(std::move(inputs));
      continue;
    }
    auto module = std::make_shared<torch::nn::Module>();
    std::vector<StageForward> forwards;
    std::vector<at::Generator> generators;
    for (int layer = part.first; layer < part.last; ++layer) {
      BuiltLayer made = built(layers[layer], layer, options.seed);
      if (made.module == nullptr || !made.forward)
        refuse_layers("layer " + layers[layer].name +
                      " was built without a module or a function, expected both");
      module->register_module(layers[layer].name, std::move(made.module));
      forwards.push_back(std::move(made.forward));
      generators.insert(generators.end(), made.generators.begin(), made.generators.end());
    }
    graph.add({std::move(module), PartForward(layers, part, stage + 1 == parts.size(), std::move(forwards)),
               std::move(inputs), std::move(generators)});
  }
  add_ties(layers, parts, options.seed, graph);
  return graph;
}

}  // namespace weft::pipeline

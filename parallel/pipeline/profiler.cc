#include <weft/parallel/pipeline/profiler.h>

#include <weft/parallel/pipeline/deferred_batch_norm.h>
#include <weft/parallel/pipeline/internal/kept_buffers.h>
#include <weft/parallel/pipeline/leaf_gradients.h>
#include <weft/parallel/pipeline/stage_runner.h>
#include <weft/rpc/core/error.h>

#include <ATen/ops/ones_like.h>
#include <c10/core/Allocator.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <sstream>
#include <string_view>

namespace weft::pipeline {
namespace {

constexpr std::string_view input_name = "Input";  // "Input0" is the description of the step's first input

bool is_input(const partition::Layer& layer) {
  const std::string_view text = layer.description;
  return text.starts_with(input_name) && text.size() > input_name.size() &&
         text.find_first_not_of("0123456789", input_name.size()) == std::string_view::npos;
}

[[noreturn]] void refuse_profile(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "profile: " + why);
}

// Returns the time after all work on the devices of the values has completed.
double milliseconds(const Values& values) {
  for (const at::Tensor& value : values)
    if (value.defined() && !value.is_cpu())
      c10::impl::VirtualGuardImpl(value.device().type()).synchronizeDevice(value.device().index());
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double bytes_of(const Values& values) {
  double sum = 0;
  for (const at::Tensor& value : values)
    if (value.defined()) sum += static_cast<double>(value.nbytes());
  return sum;
}

std::string text_of(const torch::nn::Module& module) {
  std::ostringstream text;
  text << module;
  std::string line = text.str();
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

// Counts the bytes that the thread has allocated and not freed since the guard was created.
struct AllocatedBytes final : c10::MemoryReportingInfoBase {
  void reportMemoryUsage(void*, std::int64_t bytes, std::size_t, std::size_t, c10::Device) override {
    sum += static_cast<double>(bytes);
  }
  bool memoryProfilingEnabled() const override { return true; }
  double sum = 0;
};

double kept_bytes(StageRunner& runner, const Values& inputs) {
  const auto kind = c10::DebugInfoKind::PROFILER_STATE;
  if (c10::ThreadLocalDebugInfo::get(kind) != nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "profile: a profiler of LibTorch is running, which replaces the counter of kept bytes: "
                     "stop the profiler");
  const auto allocated = std::make_shared<AllocatedBytes>();
  const c10::DebugInfoGuard guard(kind, allocated);
  const Values outputs = runner.forward(0, inputs, StageRunner::Keep::activations);
  return allocated->sum;
}

struct Measured {
  double forward_ms = 0, backward_ms = 0, activation_bytes = 0;
  Values outputs;
};

Measured measure(const Stage& layer, const Values& inputs, const ProfileOptions& options) {
  LeafGradients gradients;
  StageRunner runner(layer, gradients);
  std::vector<double> forward, backward;
  Measured measured;
  for (int round = -options.warm_up; round < options.rounds; ++round) {
    constexpr int microbatch = 0;
    const double start = milliseconds(inputs);
    Values outputs = runner.forward(microbatch, inputs, StageRunner::Keep::activations);
    const double middle = milliseconds(outputs);
    bool has_backward = false;
    for (const at::Tensor& output : outputs) {
      has_backward = has_backward || output.requires_grad();
      runner.add_root(microbatch, output, at::ones_like(output));
    }
    const double before = milliseconds(outputs);
    if (has_backward) runner.backward(microbatch);
    const double finish = milliseconds(outputs);
    runner.clear();
    gradients.clear();
    if (round < 0) continue;
    forward.push_back(middle - start);
    backward.push_back(finish - before);
    measured.outputs = std::move(outputs);
  }
  measured.forward_ms = median(forward);
  measured.backward_ms = median(backward);
  measured.activation_bytes = options.activations == ProfileOptions::Activations::outputs
                                  ? bytes_of(measured.outputs)
                                  : kept_bytes(runner, inputs);
  // Without history, as values that a stage receives.
  for (at::Tensor& output : measured.outputs) output = output.detach().requires_grad_(output.requires_grad());
  return measured;
}

partition::Profile measure_all(const StageGraph& layers, const Values& sample,
                               const ProfileOptions& options) {
  const auto count = static_cast<std::size_t>(layers.size());
  if (count == 0) refuse_profile("the graph has no layers, expected at least one");
  if (options.rounds < 1 || options.warm_up < 0)
    refuse_profile(std::to_string(options.rounds) + " rounds after " + std::to_string(options.warm_up) +
                   ", expected at least 1 after at least 0");
  if (!options.names.empty() && options.names.size() != count)
    refuse_profile(std::to_string(options.names.size()) + " names of " + std::to_string(count) +
                   " layers, expected one each");

  partition::Profile profile;
  std::map<int, std::size_t> places;  // in the profile: of layers, and of inputs as -1 - input
  std::map<Source, at::Tensor> values;
  for (int number = 0; number < layers.size(); ++number) {
    for (const Source& input : layers[number].inputs) {
      if (input.from >= 0 || places.contains(-1 - input.output)) continue;
      if (static_cast<std::size_t>(input.output) >= sample.size())
        refuse_profile("a layer uses input " + std::to_string(input.output) +
                       " of the step, but the sample has " + std::to_string(sample.size()) +
                       " values, expected at least " + std::to_string(input.output + 1));
      const std::string which = std::to_string(input.output);
      values[input] = sample[static_cast<std::size_t>(input.output)];
      places[-1 - input.output] = profile.layers.size();
      profile.layers.push_back({.name = "input" + which,
                                .description = std::string(input_name) + which,
                                .activation_bytes = bytes_of({values[input]})});
    }
  }
  for (int number = 0; number < layers.size(); ++number) {
    const Stage& layer = layers[number];
    Values inputs;
    for (const Source& input : layer.inputs) inputs.push_back(values.at(input));
    const Measured measured = measure(layer, inputs, options);
    for (std::size_t output = 0; output < measured.outputs.size(); ++output)
      values[{number, static_cast<int>(output)}] = measured.outputs[output];
    const std::size_t place = profile.layers.size();
    places[number] = place;
    profile.layers.push_back({.name = options.names.empty() ? "layer" + std::to_string(number)
                                                            : options.names[static_cast<std::size_t>(number)],
                              .description = text_of(*layer.module),
                              .forward_ms = measured.forward_ms,
                              .backward_ms = measured.backward_ms,
                              .activation_bytes = measured.activation_bytes,
                              .parameter_bytes = bytes_of(layer.module->parameters())});
    for (const Source& input : layer.inputs) {
      const partition::Edge edge{places.at(input.from >= 0 ? input.from : -1 - input.output), place};
      if (std::find(profile.edges.begin(), profile.edges.end(), edge) == profile.edges.end())
        profile.edges.push_back(edge);
    }
  }
  partition::topological_order(profile);  // refuses names that are not unique
  return profile;
}

// Sets training mode; the destructor restores the mode of each module.
class InTraining {
 public:
  explicit InTraining(const StageGraph& layers) {
    for (int layer = 0; layer < layers.size(); ++layer)
      for (const auto& module : layers[layer].module->modules())
        modes_.emplace_back(module, module->is_training());
    layers.train();
  }
  ~InTraining() {
    for (const auto& [module, on] : modes_) module->train(on);  // modules precede those within them
  }
  InTraining(const InTraining&) = delete;
  InTraining& operator=(const InTraining&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> modes_;
};

}  // namespace

partition::Profile profile(const StageGraph& layers, const Values& sample, const ProfileOptions& options) {
  const InTraining training(layers);
  std::vector<KeptBuffers> buffers;
  for (int layer = 0; layer < layers.size(); ++layer) buffers.emplace_back(*layers[layer].module);
  const auto restore = [&] {
    for (const KeptBuffers& each : buffers) each.restore();
    end_minibatch(layers, false);
  };
  try {
    partition::Profile measured = measure_all(layers, sample, options);
    restore();
    return measured;
  } catch (...) {
    restore();
    throw;
  }
}

partition::Profile profile(const torch::nn::Sequential& model, const at::Tensor& sample,
                           const ProfileOptions& options) {
  ProfileOptions named = options;
  if (named.names.empty())
    for (const auto& child : model->named_children()) named.names.push_back(child.key());
  std::vector<int> cuts;
  for (int layer = 1; layer < static_cast<int>(model->size()); ++layer) cuts.push_back(layer);
  partition::Profile measured =
      profile(model->is_empty() ? StageGraph{} : split(model, cuts), {sample}, named);
  const auto modules = model->children();
  for (std::size_t layer = 0; layer < modules.size(); ++layer)
    measured.layers[layer + 1].description = text_of(*modules[layer]);  // layer 0 is the input
  return measured;
}

partition::Profile profile(const LayerGraph& model, const Values& sample, const ProfileOptions& options) {
  ProfileOptions named = options;
  if (named.names.empty()) named.names = model.names();
  CutOptions each_layer;
  for (int layer = 1; layer < model.size(); ++layer) each_layer.cuts.push_back(layer);
  return profile(model.size() == 0 ? StageGraph{} : cut(model, each_layer), sample, named);
}

std::vector<int> cuts_of(const partition::Profile& profile, const partition::Partition& partition) {
  std::vector<std::optional<int>> number(profile.layers.size());  // of layers that are not inputs
  int layers = 0;
  for (std::size_t layer = 0; layer < number.size(); ++layer)
    if (!is_input(profile.layers[layer])) number[layer] = layers++;
  std::vector<int> cuts;
  int next = 0;
  for (const partition::Stage& stage : partition.stages) {
    const int first = next;
    for (const std::size_t layer : stage.layers)
      if (number.at(layer) && *number[layer] != next++)
        throw rpc::Error(rpc::ErrorKind::invalid_argument,
                         "cuts_of: a stage with layer " + profile.layers[layer].name +
                             " where layer number " + std::to_string(next - 1) +
                             " is next: expected stages of consecutive layers (Cuts::in_order)");
    if (next > first && first > 0) cuts.push_back(first);
  }
  return cuts;
}

}  // namespace weft::pipeline

// profile(): measures the layers of a model for parallel/partition/, which cuts it into stages.
//
//   const partition::Profile measured = pipeline::profile(model, sample);   // a torch::nn::Sequential
//   const partition::Partition found = partition::balance_exactly(measured, 3);
//   LocalPipeline pipeline{split(model, cuts_of(measured, found)), ...};
//
// profile() runs each layer alone, forward and backward, in training mode, on the calling thread and the
// device of the sample. It restores the modes and the buffers of the model, such as the statistics of a batch
// norm, and does not change the gradients in `.grad`. Errors: rpc::Error with invalid_argument, and the
// exceptions of the layers. Thread-safety: one call at a time for one model.
#pragma once

#include <weft/parallel/partition/partition.h>
#include <weft/parallel/partition/profile.h>
#include <weft/parallel/pipeline/layer_graph.h>

#include <cstdint>
#include <string>
#include <vector>

namespace weft::pipeline {

// How layers are measured.
struct ProfileOptions {
  int rounds = 5;   // times are medians of this many runs of each layer
  int warm_up = 1;  // runs before the measured ones
  // The names of the layers. Empty: the names in the Sequential or LayerGraph, or "layer0", "layer1" ...
  std::vector<std::string> names = {};
  // What the bytes of a layer's activations include. outputs: the layer's outputs, as in PipeDream. kept: all
  // tensors that its forward allocates and keeps, including those that the backward uses; use it with
  // balance_by_size(), as in torchgpipe. LibTorch's allocators count the kept bytes. If a profiler of
  // LibTorch runs at that time, profile() fails with failed_precondition.
  enum class Activations : std::uint8_t { outputs, kept } activations = Activations::outputs;
};

// layers: a graph with one layer in each stage. sample: the inputs of a step, for one micro-batch. Each layer
// of the profile has its forward and backward time in milliseconds, and the bytes of its activations and
// parameters. If two layers share a parameter, its bytes count in both. The profile also has a layer for each
// input of the step that a layer uses, with the name "input0" and the description "Input0", and so on.
// invalid_argument: the graph has no layers, the sample lacks an input, options.rounds is below 1,
// options.warm_up is negative, or the number of names is not that of the layers.
WEFT_EXPORT partition::Profile profile(const StageGraph& layers, const Values& sample,
                                       const ProfileOptions& options = {});
WEFT_EXPORT partition::Profile profile(const torch::nn::Sequential& model, const at::Tensor& sample,
                                       const ProfileOptions& options = {});

WEFT_EXPORT partition::Profile profile(const LayerGraph& model, const Values& sample,
                                       const ProfileOptions& options = {});

// Returns the first layer of each stage after the first stage, for split() and CutOptions::cuts. profile: a
// result of profile(). A stage that has only inputs becomes a part of the next stage. invalid_argument: the
// layers of a stage are not consecutive; to avoid this, use partition::Cuts::in_order.
WEFT_EXPORT std::vector<int> cuts_of(const partition::Profile& profile,
                                     const partition::Partition& partition);

}  // namespace weft::pipeline

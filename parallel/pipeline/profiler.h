// profile(): measures the layers of a model for parallel/partition/, which cuts it into stages.
//
//   const partition::Profile measured = pipeline::profile(model, sample);   // a torch::nn::Sequential
//   const partition::Partition found = partition::balance_exactly(measured, 3);
//   LocalPipeline pipeline{split(model, cuts_of(measured, found)), ...};
//
// Each layer runs alone, forward and backward, in training mode, on the calling thread and the device of the
// sample. Afterwards the model has its modes, its buffers, such as the statistics of a batch norm, and its
// gradients in `.grad` as before. Errors: rpc::Error with invalid_argument, and what a layer throws. Not
// thread-safe for one model.
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
  int warm_up = 1;  // runs before these
  // Of the layers. Empty: those of the Sequential or LayerGraph, or "layer0", "layer1" ...
  std::vector<std::string> names = {};
  // The bytes of a layer's activations are those of its outputs, as PipeDream counts them, or of all tensors
  // that its forward makes and keeps, which include what the backward uses: for balance_by_size(), as in
  // torchgpipe. Counted by LibTorch's allocators; failed_precondition while a profiler of LibTorch runs.
  enum class Activations : std::uint8_t { outputs, kept } activations = Activations::outputs;
};

// layers: a graph with one layer in each stage. sample: the inputs of a step, for one micro-batch. A layer of
// the profile has its forward and backward time in milliseconds, the bytes of its activations and those of
// its parameters; a parameter that two layers share counts in both. The inputs of the
// step that layers use are layers too, named "input0" and described as "Input0", and so on. invalid_argument:
// no layers, rounds below 1, or another number of names.
WEFT_EXPORT partition::Profile profile(const StageGraph& layers, const Values& sample,
                                       const ProfileOptions& options = {});
WEFT_EXPORT partition::Profile profile(const torch::nn::Sequential& model, const at::Tensor& sample,
                                       const ProfileOptions& options = {});

WEFT_EXPORT partition::Profile profile(const LayerGraph& model, const Values& sample,
                                       const ProfileOptions& options = {});

// The first layers of the stages after the first one, for split() and CutOptions::cuts. profile: of
// profile(). A stage of inputs alone is a part of the next one. invalid_argument: a stage of layers that are
// not consecutive; see partition::Cuts::in_order.
WEFT_EXPORT std::vector<int> cuts_of(const partition::Profile& profile,
                                     const partition::Partition& partition);

}  // namespace weft::pipeline

// Profile: a model as a graph of layers, each with its measured times and sizes.
//
// The input of every partitioner of this folder. profile_text.h reads and writes it in the form of
// PipeDream's graph.txt. Functions here are pure. Errors: rpc::Error with the kind invalid_argument.
// Thread-safety: values.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

namespace weft::partition {

// One layer of the model.
struct Layer {
  std::string name;              // unique in its profile; PipeDream: "node12"
  std::string description = "";  // PipeDream: the module's text, "Linear(in_features=4096, ...)"
  double forward_ms = 0;         // one micro-batch on one worker
  double backward_ms = 0;
  double activation_bytes = 0;  // its output for one micro-batch
  double parameter_bytes = 0;
  std::optional<std::size_t> stage = std::nullopt;  // its stage in a partition
  friend bool operator==(const Layer&, const Layer&) = default;
};

// The layer `to` reads the output of the layer `from`. Indices into Profile::layers.
struct Edge {
  std::size_t from = 0, to = 0;
  friend bool operator==(const Edge&, const Edge&) = default;
};

struct Profile {
  std::vector<Layer> layers;
  std::vector<Edge> edges;
  friend bool operator==(const Profile&, const Profile&) = default;
};

// A chain: each layer reads the output of the layer before it.
WEFT_EXPORT Profile sequence(std::vector<Layer> layers);

// The model's input: a layer without edges into it whose description begins with "Input". Partitioners place
// it in the first stage and do not count its times and sizes, since loading data is not a stage's work.
WEFT_EXPORT bool is_input(const Profile& profile, std::size_t layer);

// All layers in topological order. If several layers could be next, the one with the lowest index comes
// first. invalid_argument: no layers, two layers of one name, an edge to a layer that does not exist, a time
// or size that is negative or not finite, or a cycle, which the error names.
WEFT_EXPORT std::vector<std::size_t> topological_order(const Profile& profile);

// Forward and backward time of a layer in seconds; 0 for an input.
WEFT_EXPORT double compute_seconds(const Profile& profile, std::size_t layer);

}  // namespace weft::partition

// GPT (Radford et al., 2019) over bytes, as the layers of a pipeline. Each layer is split over the ranks of a
// tensor group (Megatron-LM).
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/parallel/pipeline/layer_graph.h>
#include <weft/parallel/pipeline/loss.h>

#include <cstdint>
#include <string>
#include <vector>

constexpr std::int64_t vocabulary = 256;

struct ModelOptions {
  std::int64_t width = 128, heads = 8, blocks = 4, context = 64;
};

// Input: bytes, int64 [rows, length] with length <= context. Output of the last layer: the logits of the
// bytes that follow. Each rank has its columns of the logits.
weft::pipeline::LayerGraph gpt(const weft::collectives::Group& tensor, const ModelOptions& options);

// The first layers of the stages after the first stage. With names: the layers with these names. Without
// names: layers such that all stages have equally many blocks.
std::vector<int> gpt_cuts(const weft::pipeline::LayerGraph& model, const std::vector<std::string>& names,
                          int stages);

// The mean cross entropy of these logits and the bytes that follow.
weft::pipeline::Loss gpt_loss(const weft::collectives::Group& tensor);

// The models of this bench. torch_peer.py and torch_rpc_peer.py have the same models.
#pragma once

#include "bench/harness/transformer_block.h"
#include "bench/pipeline/work.h"

#include <weft/parallel/pipeline/layer_graph.h>

#include <torch/torch.h>

#include "examples/pipeline_resnet/resnet.h"

namespace weft::bench {

struct Scale : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x * factor; }
  at::Tensor factor = register_parameter("factor", at::ones({1}));
};

inline pipeline::LayerGraph layers_of(const Work& work) {
  if (work.model == Model::resnet50) return resnet50(tutorial_classes, tutorial_width, 3, true);
  pipeline::LayerGraph model;
  for (int block = 0; block < work.blocks; ++block) {
    const std::string name = "block" + std::to_string(block);
    if (work.model == Model::transformer)
      model.add(name, [width = work.width] { return std::make_shared<TransformerBlock>(width, 4, false); });
    else
      model.add(name, [] { return std::make_shared<Scale>(); });
  }
  return model;
}

inline std::vector<int> cuts_of(const Work& work, int stages) {
  if (work.model == Model::resnet50) return {8};  // after the second group of blocks
  std::vector<int> cuts;
  for (int stage = 1; stage < stages; ++stage) cuts.push_back(work.blocks * stage / stages);
  return cuts;
}

struct Data {
  at::Tensor input, target;  // the rows of all micro-batches
};
inline Data data_of(const Work& work) {
  const std::int64_t rows = work.rows * work.microbatches;
  if (work.model == Model::resnet50)
    return {torch::randn({rows, 3, tutorial_image, tutorial_image}), torch::randn({rows, tutorial_classes})};
  if (work.model == Model::scale) return {torch::randn({rows, 1}), torch::randn({rows, 1})};
  const at::Tensor input = torch::randn({rows, work.tokens, work.width});
  return {input, torch::randn_like(input)};
}

}  // namespace weft::bench

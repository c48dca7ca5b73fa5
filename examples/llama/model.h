// Llama (Touvron et al., 2023) with grouped-query attention. The parameters have the names that they have in
// the files of Hugging Face's models. Each layer is split over the ranks of a tensor group (Megatron-LM).
#pragma once

#include <torch/torch.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/pipeline/layer_graph.h>
#include <weft/parallel/pipeline/loss.h>
#include <weft/parallel/sharded/block.h>
#include <weft/parallel/tensor_parallel/vocabulary_embedding.h>
#include <weft/parallel/weights/names.h>

#include <memory>
#include <string>
#include <vector>

#include "llama/config.h"

struct DecoderLayer;
struct RmsNorm;

// The keys and values of the tokens that a layer has seen, of this rank's heads: [rows, heads, length, head
// width]. Undefined before the first token.
struct Seen {
  at::Tensor keys, values;
};

// The whole model. The attentions and MLPs are split over the ranks.
struct Llama : torch::nn::Module {
  Llama(const weft::collectives::Group& tensor, const Config& config);
  ~Llama() override;
  // tokens: int64 [rows, length]. Returns the logits of the tokens that follow: this rank's columns.
  at::Tensor forward(const at::Tensor& tokens) { return logits(features(tokens)); }
  // The two parts of forward. seen: one for each layer; gets the keys and values of the tokens. If it has
  // some already, `tokens` has one column, the token that follows them.
  at::Tensor features(const at::Tensor& tokens, std::vector<Seen>* seen = nullptr);
  at::Tensor logits(const at::Tensor& features) { return lm_head->logits(features); }

  weft::tensor_parallel::VocabularyParallelEmbedding embed_tokens, lm_head;  // the same if they are tied
  std::vector<std::shared_ptr<weft::sharded::Block<DecoderLayer>>> layers;
  std::shared_ptr<RmsNorm> norm;
};

// The same model as the layers of a pipeline. Throws std::invalid_argument if the embeddings are tied.
weft::pipeline::LayerGraph llama_layers(const weft::collectives::Group& tensor, const Config& config);
// The first layers of the stages after the first stage. All stages have about equally many decoder layers.
std::vector<int> llama_cuts(const Config& config, int stages);
// The name in a file of a parameter of these layers.
std::string name_in_file(const std::string& parameter);
// The tensors of a file that the model has. Some files also have those that are computed from others.
weft::weights::NameMap names_in_model(const Config& config);

// The mean cross entropy of the logits and the tokens that follow, computed in float32.
weft::pipeline::Loss llama_loss(const weft::collectives::Group& tensor, const Config& config);

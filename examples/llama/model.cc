#include "llama/model.h"

#include <weft/parallel/tensor_parallel/conjugates.h>
#include <weft/parallel/tensor_parallel/cross_entropy.h>
#include <weft/parallel/tensor_parallel/linear.h>
#include <weft/parallel/weights/deferred.h>

#include <cctype>
#include <numbers>
#include <stdexcept>

using namespace weft::tensor_parallel;
using weft::collectives::Group;

namespace {

// The angles by which pairs of features are rotated, in radians for each position: [head width / 2].
at::Tensor frequencies_of(const Config& config) {
  const weft::weights::NotDeferred not_deferred;  // it is not a tensor of the module
  const at::Tensor exponents = at::arange(0, config.head_width, 2, at::kFloat) / config.head_width;
  const at::Tensor all = 1.0 / at::pow(config.rotary_base, exponents);
  if (!config.llama3) return all / config.rotary_factor;
  const auto [context, low, high] = *config.llama3;
  const at::Tensor kept = ((context * all / (2 * std::numbers::pi) - low) / (high - low)).clamp(0, 1);
  return (1 - kept) * all / config.rotary_factor + kept * all;
}

// Rotates the features i and i + head width / 2 of each position. x: [rows, heads, length, head width]. The
// angles are computed in float32, their sines and cosines are rounded to the type of x.
at::Tensor rotate(const at::Tensor& x, std::int64_t first_position, const at::Tensor& frequencies) {
  const at::Tensor positions = at::arange(first_position, first_position + x.size(2), at::kFloat);
  const at::Tensor angles = at::outer(positions, frequencies);
  const at::Tensor cos = angles.cos().to(x.scalar_type()), sin = angles.sin().to(x.scalar_type());
  const auto halves = x.chunk(2, -1);
  return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
}

}  // namespace

// k_proj or v_proj. If there are fewer heads than ranks, each rank has all of the weight, and computes the
// head that its queries use.
struct KeyValueProjection : SplitModule {
  KeyValueProjection(const Group& tensor, const Config& config)
      : group(tensor), head_width(config.head_width), heads(config.key_value_heads) {
    const at::Tensor whole = at::zeros({heads * head_width, config.width});
    weight = heads < group.size() ? register_parameter("weight", whole)
                                  : register_split("weight", whole, {group, 0, whole.size(0)});
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor rows = weight;
    if (heads < group.size())
      rows = copy_to_ranks(group, weight)
                 .narrow(0, group.rank() * heads / group.size() * head_width, head_width);
    return at::linear(copy_to_ranks(group, x), rows);
  }
  const Group group;
  const std::int64_t head_width, heads;
  at::Tensor weight;
};

struct Attention : torch::nn::Module {
  Attention(const Group& tensor, const Config& config)
      : head_width(config.head_width), frequencies(frequencies_of(config)) {
    const std::int64_t features = config.heads * head_width;
    q_proj = register_module(
        "q_proj", ColumnParallelLinear(tensor, config.width, features, ColumnParallelOptions{.bias = false}));
    k_proj = register_module("k_proj", std::make_shared<KeyValueProjection>(tensor, config));
    v_proj = register_module("v_proj", std::make_shared<KeyValueProjection>(tensor, config));
    o_proj = register_module(
        "o_proj", RowParallelLinear(tensor, features, config.width, RowParallelOptions{.bias = false}));
  }
  at::Tensor forward(const at::Tensor& x, Seen* seen) {
    const std::int64_t before = seen != nullptr && seen->keys.defined() ? seen->keys.size(2) : 0;
    const at::Tensor queries = rotate(by_head(q_proj(x)), before, frequencies);
    at::Tensor keys = rotate(by_head(k_proj->forward(x)), before, frequencies);
    at::Tensor values = by_head(v_proj->forward(x));
    if (before > 0) {
      keys = at::cat({seen->keys, keys}, 2);
      values = at::cat({seen->values, values}, 2);
    }
    if (seen != nullptr) *seen = {keys, values};
    const at::Tensor mixed = at::scaled_dot_product_attention(
        queries, keys, values, {}, 0, /*is_causal=*/before == 0, {}, /*enable_gqa=*/true);
    return o_proj(mixed.transpose(1, 2).flatten(2));
  }
  at::Tensor by_head(const at::Tensor& features) const {
    return features.unflatten(-1, {-1, head_width}).transpose(1, 2);
  }
  const std::int64_t head_width;
  const at::Tensor frequencies;
  ColumnParallelLinear q_proj{nullptr};
  std::shared_ptr<KeyValueProjection> k_proj, v_proj;
  RowParallelLinear o_proj{nullptr};
};

struct Mlp : torch::nn::Module {
  Mlp(const Group& tensor, const Config& config) {
    const ColumnParallelOptions column{.bias = false};
    gate_proj =
        register_module("gate_proj", ColumnParallelLinear(tensor, config.width, config.hidden, column));
    up_proj = register_module("up_proj", ColumnParallelLinear(tensor, config.width, config.hidden, column));
    down_proj = register_module("down_proj", RowParallelLinear(tensor, config.hidden, config.width,
                                                               RowParallelOptions{.bias = false}));
  }
  at::Tensor forward(const at::Tensor& x) { return down_proj(at::silu(gate_proj(x)) * up_proj(x)); }
  ColumnParallelLinear gate_proj{nullptr}, up_proj{nullptr};
  RowParallelLinear down_proj{nullptr};
};

// For a pipeline: the output layer, with the rows of a vocabulary.
struct Head : torch::nn::Module {
  Head(const Group& tensor, const Config& config) {
    rows = register_module("rows", VocabularyParallelEmbedding(tensor, config.vocabulary, config.width));
  }
  at::Tensor forward(const at::Tensor& features) { return rows->logits(features); }
  VocabularyParallelEmbedding rows{nullptr};
};

struct RmsNorm : torch::nn::Module {
  explicit RmsNorm(const Config& config) : epsilon(config.epsilon) {
    weight = register_parameter("weight", at::ones({config.width}));
  }
  // Normalizes in float32, and multiplies by the weight in the type of x, as transformers does.
  at::Tensor forward(const at::Tensor& x) {
    return weight * at::rms_norm(x.to(at::kFloat), weight.sizes(), {}, epsilon).to(x.scalar_type());
  }
  const double epsilon;
  at::Tensor weight;
};

struct DecoderLayer : torch::nn::Module {
  DecoderLayer(const Group& tensor, const Config& config) {
    input_layernorm = register_module("input_layernorm", std::make_shared<RmsNorm>(config));
    self_attn = register_module("self_attn", std::make_shared<Attention>(tensor, config));
    post_attention_layernorm = register_module("post_attention_layernorm", std::make_shared<RmsNorm>(config));
    mlp = register_module("mlp", std::make_shared<Mlp>(tensor, config));
  }
  at::Tensor forward(const at::Tensor& x, Seen* seen = nullptr) {
    const at::Tensor y = x + self_attn->forward(input_layernorm->forward(x), seen);
    return y + mlp->forward(post_attention_layernorm->forward(y));
  }
  std::shared_ptr<RmsNorm> input_layernorm, post_attention_layernorm;
  std::shared_ptr<Attention> self_attn;
  std::shared_ptr<Mlp> mlp;
};

Llama::Llama(const Group& tensor, const Config& config)
    : embed_tokens(tensor, config.vocabulary, config.width),
      lm_head(embed_tokens),
      norm(std::make_shared<RmsNorm>(config)) {
  const auto model = register_module("model", std::make_shared<torch::nn::Module>("model"));
  model->register_module("embed_tokens", embed_tokens);
  const auto list = model->register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < config.layers; ++i)
    list->push_back(
        layers.emplace_back(std::make_shared<weft::sharded::Block<DecoderLayer>>(tensor, config)));
  model->register_module("norm", norm);
  if (!config.tied)
    lm_head =
        register_module("lm_head", VocabularyParallelEmbedding(tensor, config.vocabulary, config.width));
}

Llama::~Llama() = default;

at::Tensor Llama::features(const at::Tensor& tokens, std::vector<Seen>* seen) {
  at::Tensor x = embed_tokens(tokens);
  for (std::size_t i = 0; i < layers.size(); ++i)
    x = layers[i]->forward(x, seen != nullptr ? &(*seen)[i] : nullptr);
  return norm->forward(x);
}

weft::pipeline::LayerGraph llama_layers(const Group& tensor, const Config& config) {
  if (config.tied)
    throw std::invalid_argument(
        "tie_word_embeddings is true: expected separate embeddings in a pipeline, because its first and last "
        "stages cannot share a parameter; use --tensor or --data instead of --pipeline");
  weft::pipeline::LayerGraph model;
  model.add("embed_tokens",
            [=] { return VocabularyParallelEmbedding(tensor, config.vocabulary, config.width); });
  for (std::int64_t i = 0; i < config.layers; ++i)
    model.add(std::to_string(i), [=] { return std::make_shared<DecoderLayer>(tensor, config); });
  model.add("norm", [=] { return std::make_shared<RmsNorm>(config); });
  model.add("lm_head", [=] { return std::make_shared<Head>(tensor, config); });
  return model;
}

std::vector<int> llama_cuts(const Config& config, int stages) {
  std::vector<int> cuts;
  for (int stage = 1; stage < stages; ++stage)
    cuts.push_back(static_cast<int>(1 + stage * config.layers / stages));
  return cuts;
}

std::string name_in_file(const std::string& parameter) {
  if (parameter == "lm_head.rows.weight") return "lm_head.weight";
  const bool in_layer = std::isdigit(static_cast<unsigned char>(parameter[0])) != 0;
  return (in_layer ? "model.layers." : "model.") + parameter;
}

weft::weights::NameMap names_in_model(const Config& config) {
  return [tied = config.tied](const std::string& name) {
    const bool computed = name.ends_with("rotary_emb.inv_freq") || (tied && name == "lm_head.weight");
    return computed ? std::string() : name;
  };
}

weft::pipeline::Loss llama_loss(const Group& tensor, const Config& config) {
  return weft::pipeline::loss_of([=](const at::Tensor& logits, const at::Tensor& following) {
    return vocabulary_parallel_cross_entropy(tensor, logits, following, config.vocabulary);
  });
}

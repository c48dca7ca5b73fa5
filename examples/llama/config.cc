#include "llama/config.h"

#include <fmt/format.h>

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

// The value of a key that may be missing or null.
template <class T>
T get_or(const json& from, const char* key, T otherwise) {
  const auto found = from.find(key);
  return found == from.end() || found->is_null() ? otherwise : found->get<T>();
}

void read_rotary(const json& file, Config& config) {
  // Newer files have all in rope_parameters.
  const json rope = get_or(file, "rope_parameters", get_or(file, "rope_scaling", json::object()));
  config.rotary_base = get_or(rope, "rope_theta", get_or(file, "rope_theta", config.rotary_base));
  const auto type = get_or<std::string>(rope, "rope_type", get_or<std::string>(rope, "type", "default"));
  if (type == "default") return;
  if (type != "linear" && type != "llama3")
    throw std::runtime_error(fmt::format("rope_type is '{}': expected default, linear or llama3", type));
  config.rotary_factor = rope.at("factor");
  if (type == "llama3")
    config.llama3 = {.context = rope.at("original_max_position_embeddings"),
                     .low = rope.at("low_freq_factor"),
                     .high = rope.at("high_freq_factor")};
}

Config parse(const json& file) {
  if (const auto type = get_or<std::string>(file, "model_type", ""); type != "llama")
    throw std::runtime_error(fmt::format("model_type is '{}': expected 'llama'", type));
  if (const auto act = get_or<std::string>(file, "hidden_act", "silu"); act != "silu")
    throw std::runtime_error(fmt::format("hidden_act is '{}': expected 'silu'", act));
  for (const char* bias : {"attention_bias", "mlp_bias"})
    if (get_or(file, bias, false))
      throw std::runtime_error(fmt::format("{} is true: this program has no such biases", bias));
  Config config{.vocabulary = file.at("vocab_size"),
                .width = file.at("hidden_size"),
                .hidden = file.at("intermediate_size"),
                .layers = file.at("num_hidden_layers"),
                .heads = file.at("num_attention_heads"),
                .epsilon = get_or(file, "rms_norm_eps", 1e-6),
                .tied = get_or(file, "tie_word_embeddings", false)};
  config.key_value_heads = get_or(file, "num_key_value_heads", config.heads);
  config.head_width = get_or(file, "head_dim", config.width / config.heads);
  read_rotary(file, config);
  return config;
}

// eos_token_id is a number, a list, or null.
std::vector<std::int64_t> end_tokens(const json& file) {
  const json ends = get_or(file, "eos_token_id", json::array());
  return ends.is_array() ? ends.get<std::vector<std::int64_t>>() : std::vector{ends.get<std::int64_t>()};
}

}  // namespace

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file) throw std::runtime_error(fmt::format("cannot read {}", path.string()));
  return text;
}

Config read_config(const fs::path& folder) {
  fs::path path = folder / "config.json";
  try {
    const json file = json::parse(read_file(path));
    Config config = parse(file);
    config.end_tokens = end_tokens(file);
    if (const fs::path generation = folder / "generation_config.json"; fs::exists(generation)) {
      path = generation;
      config.end_tokens = end_tokens(json::parse(read_file(path)));
    }
    return config;
  } catch (const std::exception& error) {
    throw std::runtime_error(fmt::format("{}: {}", path.string(), error.what()));
  }
}

// Config: the sizes of a model, from the config.json of its folder. Pure data.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

struct Config {
  std::int64_t vocabulary = 0, width = 0, hidden = 0, layers = 0;  // hidden: the width within an MLP
  std::int64_t heads = 0, key_value_heads = 0, head_width = 0;
  double epsilon = 1e-6;  // of the norms
  bool tied = false;      // whether the embedding is also the weight of the output layer

  double rotary_base = 10'000;
  double rotary_factor = 1;  // by which the frequencies are divided
  // Llama 3: only low frequencies are divided. A frequency is low if the context has fewer than `low` of its
  // periods, and it stays if the context has more than `high`.
  struct Llama3 {
    double context = 8192, low = 1, high = 4;
  };
  std::optional<Llama3> llama3 = {};

  std::vector<std::int64_t> end_tokens;  // after which the model has no more text
};

// Reads config.json, and the end tokens of generation_config.json if it exists. Throws std::runtime_error if
// a file is malformed, or the model has something that this program does not compute.
Config read_config(const std::filesystem::path& folder);

// The contents of a file. Throws std::runtime_error if it cannot be read.
std::string read_file(const std::filesystem::path& path);

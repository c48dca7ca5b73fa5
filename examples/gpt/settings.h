// What the command line asks for; --help describes each.
#pragma once

#include <cstdint>
#include <string>

#include "gpt/model.h"

struct Settings {
  int data = 0, pipeline = 1, tensor = 1;  // ranks of each dimension; data 0: all that the others leave
  std::string schedule = "1f1b";
  int microbatches = 4;
  ModelOptions model;
  std::int64_t batch_size = 32;  // rows of all ranks together
  std::int64_t steps = 1000;
  double learning_rate = 2e-3;
  std::uint64_t seed = 1;
  int threads = 1;
  bool float64 = false;
  std::string text, out = "out/gpt";
  std::int64_t sampled = 300;  // bytes
  std::string checkpoint;      // folder; empty for none
  std::int64_t checkpoint_every = 100;

  int processes() const { return (data == 0 ? 1 : data) * pipeline * tensor; }
};

// Ends the program if the command line is wrong or asks for help.
Settings parse_settings(int argc, char** argv);

// With the number of data parallel ranks. Throws an error with the reason if these ranks cannot share the
// model and its batches.
Settings fitted(Settings settings, int ranks);

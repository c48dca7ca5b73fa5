// The options of the command line, which --help describes.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <cstdint>
#include <string>

#include "llama/config.h"

struct Settings {
  std::string command;                     // generate, train or tokens
  std::string model;                       // a folder
  int data = 0, pipeline = 1, tensor = 1;  // ranks of each dimension; data 0: all remaining ranks
  int threads = 1;
  std::uint64_t seed = 1;

  // generate
  std::string prompt;
  std::int64_t tokens = 100;
  double temperature = 0;  // 0: the most probable token
  bool ids = false;        // print tokens instead of text
  std::string logits;      // a file for the logits of the prompt; empty for none

  // train, and the text also of tokens
  std::string text, out;
  std::int64_t context = 256, batch_size = 8, steps = 0;  // steps 0: each token once
  int microbatches = 0;                                   // 0: as many as pipeline ranks
  double learning_rate = 1e-5, weight_decay = 0.01, clip = 1;
  std::string schedule = "1f1b";
  bool bfloat16 = false;  // forward and backward compute in bfloat16

  int processes() const { return (data == 0 ? 1 : data) * pipeline * tensor; }
};

// Ends the program if the command line is wrong or asks for help.
Settings parse_settings(int argc, char** argv);

// The settings with the numbers of data parallel ranks and micro-batches filled in. Throws an error with the
// reason if the model and its batches cannot be split over this number of ranks.
Settings fitted(Settings settings, const Config& config, int ranks);

// The options of the command line, which --help describes.
#pragma once

#include <cstdint>
#include <string>

struct Settings {
  std::int64_t epochs = 2;
  std::int64_t batch_size = 64;  // the batch size of each rank
  std::int64_t images = 60'000;
  std::int64_t width = 16;
  double learning_rate = 0.1;
  std::uint64_t seed = 1;
  int threads = 1;
  bool compress = false, uneven = false, group_norm = false;
  std::string shard;  // "zero1", "zero2" or "zero3"; empty: nothing is split
  std::string data, out = "out/ddp_train";
  std::string checkpoint;  // folder; empty for none
  std::int64_t checkpoint_every = 50;
};

// Ends the program if the command line is wrong or asks for help.
Settings parse_settings(int argc, char** argv);

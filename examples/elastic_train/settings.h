// The options of the command line, which --help describes.
#pragma once

#include <cstdint>
#include <string>

struct Settings {
  std::int64_t epochs = 3;
  std::int64_t batch_size = 240;  // the batch size of all workers together
  std::int64_t images = 60'000;
  double learning_rate = 0.1;
  std::uint64_t seed = 1;
  int threads = 1;
  bool float64 = false;
  std::string data, out = "out/elastic_train";
  std::string log, checkpoint;  // folders; empty for none

  std::uint64_t storm = 1;
  int changes = 12;
  std::string weft;  // the path of the program weft; empty: searched

  std::int64_t steps_per_epoch() const { return (images + batch_size - 1) / batch_size; }
  std::int64_t steps() const { return epochs * steps_per_epoch(); }
};

// Ends the program if the command line is wrong or asks for help.
Settings parse_settings(int argc, char** argv);

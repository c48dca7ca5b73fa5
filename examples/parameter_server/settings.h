// The options of the command line, which --help describes.
#pragma once

#include <weft/dist_optim/local/step_mode.h>

#include <cstdint>
#include <string>

enum class Mode { autograd, pull_push };

struct Settings {
  Mode mode = Mode::autograd;
  std::string step_mode = "bounded-staleness";  // or synchronous, hogwild
  std::int32_t staleness = 2;
  std::int64_t epochs = 2;
  std::int64_t batch_size = 64;
  std::int64_t images = 60'000, test_images = 10'000;
  double learning_rate = 2e-3;
  std::uint64_t seed = 1;
  int threads = 1;
  int trainers = 2;
  std::string data, out = "out/parameter_server";
  std::string checkpoint;  // folder; empty for none
  std::int64_t checkpoint_every = 100;

  weft::dist_optim::StepMode optimizer_mode() const;
};

// Also sets those variables of rpc::from_environment() that the command line gives. Ends the program if the
// command line is wrong or asks for help.
Settings parse_settings(int argc, char** argv);

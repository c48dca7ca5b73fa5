// The options of the command line, which --help describes.
#pragma once

#include <weft/parallel/collectives/device_mesh.h>
#include <weft/parallel/schedule/schedule.h>

#include <cstdint>
#include <string>
#include <vector>

#include "gpt/model.h"

struct Settings {
  int data = 0, pipeline = 1, tensor = 1;  // ranks of each dimension; data 0: all remaining ranks
  std::vector<std::string> mesh = {"data", "pipeline", "tensor"};  // the outermost dimension first
  std::string schedule = "1f1b";
  int chunks = 0;                // stages on each rank; 0: as few as the schedule has
  std::vector<std::string> cut;  // first layers of the stages after the first one; empty: equally many blocks
  int microbatches = 4;
  ModelOptions model;
  std::int64_t batch_size = 32;  // rows of all ranks together
  std::int64_t steps = 2000;
  double learning_rate = 4e-3;
  std::uint64_t seed = 1;
  int threads = 1;
  bool float64 = false;
  std::string text, out = "out/gpt";
  std::int64_t sampled = 300;  // bytes
  std::string profile;         // a file to write instead of training
  std::string checkpoint;      // folder; empty for none
  std::int64_t checkpoint_every = 100;

  int processes() const { return (data == 0 ? 1 : data) * pipeline * tensor; }
};

// Ends the program if the command line is wrong or asks for help.
Settings parse_settings(int argc, char** argv);

std::vector<weft::collectives::DeviceMesh::Dimension> dimensions_of(const Settings& settings);
weft::schedule::Schedule schedule_of(const Settings& settings);

// The settings with the number of data parallel ranks filled in. Throws an error with the reason if the model
// and its batches cannot be split over this number of ranks.
Settings fitted(Settings settings, int ranks);

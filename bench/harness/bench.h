// Bench: what is measured: cases, and in each the contenders that do the same work. Data, made by a bench's
// main and handed to run_bench(). Thread-safety: a value.
#pragma once

#include "bench/harness/meter.h"
#include "bench/harness/pins.h"
#include "bench/harness/row.h"

#include <functional>
#include <string>
#include <vector>

namespace weft::bench {

struct Setting {
  Budget budget;
  Pins pins;
};

struct Outcome {
  Figures figures;
  std::string threads;  // as in Row
  std::string error;
  Notes notes;  // in addition to the contender's: facts found during the measurement
};

struct Contender {
  std::string peer;
  Notes notes;
  std::function<Outcome(const Setting&)> measure;  // one round, in separate processes
};

struct Case {
  std::string name;
  std::vector<Contender> contenders;
};

struct Bench {
  std::string name;
  std::string subject = "weft";  // the peer that ratios compare with the others
  std::size_t processes = 2;     // of one measurement, for the default pins
  std::vector<Case> cases;
};

// The whole program: options, rounds, progress, rows, table. Returns main()'s result: 1 where the subject
// failed in a case, 2 where the options are wrong.
int run_bench(int argc, char** argv, Bench bench);

}  // namespace weft::bench

// Bench: the cases of one benchmark, and the contenders that do the work of each case. A bench's main()
// creates it and passes it to run_bench(). Thread-safety: a value.
#pragma once

#include "bench/harness/meter.h"
#include "bench/harness/pins.h"
#include "bench/harness/row.h"

#include <functional>
#include <string>
#include <utility>
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
  Notes notes;  // facts found during the measurement, in addition to the contender's notes
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
  std::size_t processes = 2;     // the processes of one measurement, to compute the default pins
  std::vector<Case> cases;
};

// Adds a case for each work, with the contenders of the peers that can do it.
template <class Works, class Peers>
void add_cases(Bench& bench, const Works& works, const Peers& peers) {
  for (const auto& work : works) {
    Case& one = bench.cases.emplace_back(Case{work.name, {}});
    for (const auto peer : peers)
      if (auto contender = peer(work)) one.contenders.push_back(std::move(*contender));
  }
}

// Runs the whole program: options, rounds, progress, rows, table. Returns the result of main(): 1 if the
// subject failed in a case, 2 if the options are wrong.
int run_bench(int argc, char** argv, Bench bench);

}  // namespace weft::bench

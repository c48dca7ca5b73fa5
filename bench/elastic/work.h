// Peers: the contenders of each case of this bench. One file has the jobs of each system, and one has the
// commits. bench/README.md describes the cases. Values.
#pragma once

#include "bench/harness/bench.h"

#include <cstdint>
#include <string>
#include <vector>

namespace weft::bench {

// The commands that start a job of workers. The workers report their steps (reports.h).
struct Launches {
  std::vector<std::string> first;   // starts the job
  std::vector<std::string> second;  // starts one more worker, in the cases of a join
};
using Launch = Launches (*)(int workers, bool join, const std::string& reports);
Launches weft_job(int workers, bool join, const std::string& reports);
Launches torchelastic_job(int workers, bool join, const std::string& reports);

// Kills one of the workers. `seconds`: the time until all ranks of the next generation have completed a step.
// `seconds_all`: the time until the same number of workers as before have completed a step.
Contender kill_contender(const char* peer, int workers, Launch launch);
// Starts one more worker. `seconds`: the time until all ranks, including the new rank, have completed a step.
// `seconds_paused`: the time between this step and the last earlier step of the other workers.
Contender join_contender(const char* peer, int workers, Launch launch);

// A model of linear layers of width × width and its Adam: the state has three times the parameters.
struct Size {
  const char* name;
  int layers;
  std::int64_t width;
};
Contender commit_contender(const Size& size);
Contender memcpy_contender(const Size& size);

}  // namespace weft::bench

// Peers: the contenders of each case of this bench. One file has the jobs of each system, and one has the
// commits. bench/README.md describes the cases. Values.
#pragma once

#include "bench/harness/bench.h"
#include "bench/harness/hosts.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace weft::bench {

struct JobOptions {
  int workers = 4;
  bool join = false;           // one more worker joins later
  std::string detection = {};  // the time within which a failure is detected, in seconds; empty: the default
  // The kind of the workers: "plain", "hosts" (uses no shared memory), "large" (has a state of 1 GiB),
  // "later" (has it, and receives it while the others train).
  std::string kind = "plain";
  const Hosts* hosts = nullptr;  // the launcher runs on the first one, each worker on a further one
};
// The commands that start a job. The workers report their steps (reports.h). On SIGUSR1, the program of a
// worker hangs at its next step, while the threads of its framework continue.
struct Launches {
  std::vector<std::string> first;   // starts the job
  std::vector<std::string> second;  // starts one more worker, in the cases of a join
};
using Launch = Launches (*)(const JobOptions& options, const std::string& reports);
Launches weft_job(const JobOptions& options, const std::string& reports);
Launches torchelastic_job(const JobOptions& options, const std::string& reports);
Launches torchft_job(const JobOptions& options, const std::string& reports);

// Sends the signal to one of the workers: SIGKILL, SIGSTOP or SIGUSR1; `cut`: cuts its host from the network.
// `seconds`: the time until all ranks of the next generation have completed a step. `seconds_all`, not after
// a cut: the time until the same number of workers as before have completed a step. `steps_lost`: the steps
// that each rank of the next generation makes again.
inline constexpr int cut = 0;
Contender failure_contender(const char* peer, Launch launch, const JobOptions& options, int signal);
// Stops one of the workers for that time (SIGSTOP, SIGCONT), which is shorter than the detection time.
// `seconds`: from its end until the next step. `steps_lost`: the steps that are made again.
Contender pause_contender(const char* peer, Launch launch, const JobOptions& options,
                          std::chrono::milliseconds time);
// Starts one more worker. `seconds`: the time until all ranks, including the new rank, have completed a step.
// `seconds_paused`: the time between this step and the last earlier step of the other workers.
Contender join_contender(const char* peer, Launch launch, const JobOptions& options);
// The floor of a join with a large state: one memcpy of as many bytes (`seconds_paused`). new_memory: the
// first use of the memory that it copies to, as a new worker's.
Contender copy_contender(const char* peer, std::size_t bytes, bool new_memory);
// Sends one of the signals to a random worker every 15 s. `share`: the steps of the job, each counted once,
// relative to the steps in the same time without failures (`steps_per_s`).
Contender storm_contender(const char* peer, Launch launch, const JobOptions& options);

// A model of linear layers of width × width and its Adam: the state has three times the parameters.
struct Size {
  const char* name;
  int layers;
  std::int64_t width;
};
Contender commit_contender(const Size& size);
Contender memcpy_contender(const Size& size);

}  // namespace weft::bench

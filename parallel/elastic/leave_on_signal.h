// LeaveOnSignal: while it lives, a signal makes this worker leave at its next commit. Batch systems,
// Kubernetes and `weft launch` stop workers with SIGTERM.
//
//   const elastic::LeaveOnSignal leave(state);
//   const auto outcome = elastic::run(job, state, body);
//
// The process handles the signal in a thread of the object, instead of being ended by it, until the object is
// destroyed. The State outlives it. Several may exist. Throws std::system_error if the signal cannot be
// handled.
#pragma once

#include <weft/parallel/elastic/state.h>

#include <csignal>
#include <memory>

namespace weft::elastic {

class WEFT_EXPORT LeaveOnSignal {
 public:
  explicit LeaveOnSignal(State& state, int signal = SIGTERM);
  ~LeaveOnSignal();
  LeaveOnSignal(const LeaveOnSignal&) = delete;
  LeaveOnSignal& operator=(const LeaveOnSignal&) = delete;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::elastic

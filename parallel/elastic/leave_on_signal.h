// LeaveOnSignal: as long as the object exists, a signal makes this worker leave at its next commit. Batch
// systems, Kubernetes and `weft launch` stop workers with SIGTERM.
//
//   const elastic::LeaveOnSignal leave(state);
//   const auto outcome = elastic::run(job, state, body);
//
// A thread of the object handles the signal, which therefore does not end the process. The State must outlive
// the object. Several objects may exist. The constructor throws std::system_error if the signal cannot be
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

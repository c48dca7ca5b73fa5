#include <weft/parallel/pipeline/internal/in_flight.h>

#include <weft/parallel/pipeline/internal/ties.h>
#include <weft/parallel/schedule/communication.h>
#include <weft/parallel/schedule/liveness.h>
#include <weft/rpc/core/error.h>
#include <weft/rpc/core/loop.h>

#include <algorithm>
#include <string>

namespace weft::pipeline {

// For each edge and direction, the credits are the slots of schedule::liveness() plus 1. The slots are the
// number of values that a receiver holds at the same time if all ranks follow the schedule, so the schedule
// needs this number in flight. A sender gets the credit of a value back only when the receiver's reply has
// arrived (used()). The 1 lets the sender send one value while that reply is in transit, or while the
// receiver is late. Messages of ties are not in the schedule: each adds 1 to the credits of its edge and
// direction.
Credits credits_of(const StageGraph& graph, const schedule::Schedule& computations) {
  const auto liveness = schedule::liveness(schedule::place_communication(computations));
  Credits credits;
  for (const auto& rank : liveness.ranks)
    for (const schedule::Edge& edge : computations.edges) {
      const auto add = [&](schedule::Held held, bool gradient) {
        credits[{edge, gradient}] = std::max(credits[{edge, gradient}], rank.slots(held, edge) + 1);
      };
      add(schedule::Held::received_activation, false);
      add(schedule::Held::received_gradient, true);
    }
  for (const ValueExchange::Key& message : tie_messages(graph, computations))
    ++credits[{message.edge, message.gradient}];
  return credits;
}

void InFlight::add(const ValueExchange::Key& key, int to, std::chrono::nanoseconds timeout) {
  const int credits = credits_.at({key.edge, key.gradient});
  rpc::MutexLock lock(mutex_);
  int& count = counts_[{key.edge, key.gradient, to}];
  const bool in_time = changed_.wait_until(lock, rpc::later(rpc::Clock::now(), timeout),
                                           [&] { return exchange_.error() != nullptr || count < credits; });
  if (const auto error = exchange_.error(); error != nullptr) std::rethrow_exception(error);
  if (!in_time)
    throw rpc::Error(
        rpc::ErrorKind::deadline_exceeded,
        "stage " + std::to_string(key.to()) + " has used none of " + std::to_string(credits) +
            " values in flight within " +
            std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(timeout).count()) + " ms");
  ++count;
}

void InFlight::used(const ValueExchange::Key& key, int to) {
  rpc::MutexLock lock(mutex_);
  --counts_[{key.edge, key.gradient, to}];
  changed_.notify_all();
}

void InFlight::wake() {
  rpc::MutexLock lock(mutex_);
  changed_.notify_all();
}

}  // namespace weft::pipeline

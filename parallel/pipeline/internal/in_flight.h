// InFlight: limits how many values of an edge a rank may have sent to another rank that has not used them
// yet.
//
// The limit is one more than the schedule needs (schedule::liveness). So a fast stage does not fill the
// memory of a slow one, and no schedule deadlocks. Thread-safe.
#pragma once

#include <weft/parallel/pipeline/internal/value_exchange.h>
#include <weft/rpc/core/mutex.h>

#include <map>
#include <tuple>
#include <utility>

namespace weft::pipeline {

// The limit of each edge, for activations (false) and gradients (true), including the messages of ties.
using Credits = std::map<std::pair<schedule::Edge, bool>, int>;
Credits credits_of(const StageGraph& graph, const schedule::Schedule& computations);

class InFlight {
 public:
  // credits and exchange outlive this object.
  InFlight(const Credits& credits, const ValueExchange& exchange) : credits_(credits), exchange_(exchange) {}

  // add(): waits until one more value may be sent. used(): the other rank has used the value. to: the rank
  // that gets the value. Throws the error of the exchange, and deadline_exceeded.
  void add(const ValueExchange::Key& key, int to, std::chrono::nanoseconds timeout);
  void used(const ValueExchange::Key& key, int to);
  void wake();  // call it when the exchange has an error

 private:
  const Credits& credits_;
  const ValueExchange& exchange_;
  rpc::Mutex mutex_;
  rpc::Condition changed_;
  std::map<std::tuple<schedule::Edge, bool, int>, int> counts_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::pipeline

// Gauges: numbers that a program publishes by name, for example its training loss. A gauge keeps its latest
// value only.
//
//   auto gauges = std::make_shared<rpc::Gauges>();
//   rpc::Agent agent{options, {gauges->layer()}};
//   gauges->set("loss", 0.31);
//
// AgentStats::gauges contains the gauges, so `weft top` and `weft dash` show them. observe::Metrics publishes
// the gauges as the metric `weft_gauge`. Several agents may share one Gauges object. An agent publishes one
// Gauges object: the one whose layer was installed last. The object does not refer to its agents, and may
// outlive them. Thread-safe.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/mutex.h>

#include <map>
#include <memory>
#include <string>

namespace weft::rpc {

class WEFT_EXPORT Gauges : public std::enable_shared_from_this<Gauges> {
 public:
  // The layer that publishes the gauges with the agent's stats.
  Layer layer();

  // Creates the gauge, or replaces its value. value: any double, including NaN.
  void set(const std::string& name, double value);
  // Removes the gauge of that name. No effect if it does not exist.
  void remove(const std::string& name);
  // A copy of all gauges, by name.
  std::map<std::string, double> values() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, double> values_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc

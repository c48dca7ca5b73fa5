// Gauges: numbers that a program publishes by name, as the loss of its training: the present value of each.
//
//   auto gauges = std::make_shared<rpc::Gauges>();
//   rpc::Agent agent{options, {gauges->layer()}};
//   gauges->set("loss", 0.31);
//
// They are in AgentStats::gauges, so `weft top` and `weft dash` show them, and in the metric `weft_gauge` of
// observe::Metrics. Several agents may have the same gauges. An agent has one; the last that was installed
// counts. The object keeps no agent, and may outlive it. Thread-safe.
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

  // Creates the gauge or replaces its value; any double, NaN too.
  void set(const std::string& name, double value);
  // Afterwards the stats have no value of that name.
  void remove(const std::string& name);
  // A copy of all gauges, by name.
  std::map<std::string, double> values() const;

 private:
  mutable Mutex mutex_;
  std::map<std::string, double> values_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc

#include <weft/rpc/agent/gauges.h>

#include <weft/rpc/endpoint/agent_core.h>

namespace weft::rpc {

Layer Gauges::layer() {
  return [self = shared_from_this()](Agent& agent) { agent.core()->layers().put(self); };
}

void Gauges::set(const std::string& name, double value) {
  const MutexLock lock(mutex_);
  values_[name] = value;
}

void Gauges::remove(const std::string& name) {
  const MutexLock lock(mutex_);
  values_.erase(name);
}

std::map<std::string, double> Gauges::values() const {
  const MutexLock lock(mutex_);
  return values_;
}

}  // namespace weft::rpc

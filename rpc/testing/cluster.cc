#include <weft/rpc/testing/cluster.h>

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/sessions.h>

#include <cstdlib>
#include <thread>

namespace weft::test {

bool between_hosts() { return std::getenv("WEFT_TEST_HOSTS") != nullptr; }

Cluster::Cluster(Options options, const std::vector<std::string>& names) : options_(std::move(options)) {
  for (const std::string& name : names) add(name);
}

Cluster::~Cluster() = default;

rpc::Agent& Cluster::add(const std::string& name, rpc::Layers layers) {
  rpc::AgentOptions options;
  options.name = name;
  options.listen = {options_.tcp ? "tcp://127.0.0.1:0" : "inproc://" + name};
  options.in_process = network_;
  options.handler_threads = 2;
  options.same_host = false;  // otherwise agents on one host would not use TCP
  options.log = [this](const rpc::LogRecord& record) {
    std::map<std::string, std::string> fields;
    for (const rpc::LogField& field : record.fields) fields.emplace(field.key, field.value);
    rpc::MutexLock lock(mutex_);
    log_.push_back({record.level, std::string(record.agent), std::string(record.message), std::move(fields)});
  };
  if (options_.adjust) options_.adjust(options);
  auto agent = std::make_unique<rpc::Agent>(std::move(options), std::move(layers));
  return *(agents_[name] = std::move(agent));
}

std::vector<std::string> Cluster::names() const {
  std::vector<std::string> all;
  all.reserve(agents_.size());
  for (const auto& [name, agent] : agents_) all.push_back(name);
  return all;
}

rpc::Peer Cluster::peer(const std::string& from, const std::string& to) {
  rpc::Agent& agent = (*this)[from];
  if (from == to) return agent.peer(to);
  rpc::Agent& other = (*this)[to];
  rpc::Peer peer = agent.connect(other.addresses().front());
  auto ready = peer.ready();
  if (between_hosts()) got(other.connect(agent.addresses().front()).ready());
  got(std::move(ready));
  return peer;
}

void Cluster::end(const std::string& name) {
  const auto found = agents_.find(name);
  if (found == agents_.end()) return;
  const rpc::AgentId id = found->second->id();
  agents_.erase(found);
  const auto give_up = rpc::Clock::now() + too_long;
  for (const auto& [other, agent] : agents_) {
    while (agent->core()->sessions().is_connected(id)) {
      if (rpc::Clock::now() >= give_up)
        throw std::runtime_error(other + " has not noticed the end of " + name + " within a minute");
      std::this_thread::sleep_for(std::chrono::milliseconds{1});
    }
  }
}

void Cluster::acquaint() {
  for (const auto& [from, agent] : agents_)
    for (const auto& [to, other] : agents_) peer(from, to);
}

std::vector<Cluster::LogLine> Cluster::log() const {
  rpc::MutexLock lock(mutex_);
  return log_;
}

std::vector<Cluster::LogLine> Cluster::logged(const std::string& words) const {
  auto lines = log();
  std::erase_if(lines, [&](const LogLine& line) { return line.message.find(words) == std::string::npos; });
  return lines;
}

}  // namespace weft::test

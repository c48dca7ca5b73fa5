// Client: an agent for the time of a command, and the peer that it asks, or several.
//
// It listens nowhere and serves nothing. Everything that is asked of them has to be answered within one
// time, which restart() begins anew. Thread-safety: one thread, the program's.
#pragma once

#include <weft/rpc/agent/agent.h>

#include <chrono>
#include <string>

namespace weft::tool {

// "host:port" is tcp://host:port, and what begins with / or ./ is unix://path. Throws UsageError.
std::string complete_address(const std::string& address);

class Client {
 public:
  // No timeout: 0. credentials: none where no file is named. With `verbose` the agent's log goes to stderr.
  Client(const std::string& address, std::chrono::nanoseconds timeout,
         const rpc::CredentialOptions& credentials = {}, bool verbose = false);

  const std::string& address() const { return address_; }
  const std::string& name() const { return agent_.name(); }  // by which agents know it
  void restart() { began_ = rpc::Clock::now(); }
  rpc::Peer peer() { return timed(peer_); }  // whose calls have what is left of the time
  rpc::Peer peer_at(const std::string& address) { return timed(agent_.connect(complete_address(address))); }

 private:
  rpc::Peer timed(const rpc::Peer& peer) const;

  std::string address_;
  std::chrono::nanoseconds timeout_;
  rpc::Agent agent_;
  rpc::Peer peer_;
  rpc::Clock::time_point began_ = rpc::Clock::now();
};

}  // namespace weft::tool

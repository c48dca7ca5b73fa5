// Client: the agent of a command, and the peers that the command calls.
//
// The agent does not listen and serves no methods. All calls together must complete within one timeout.
// restart() starts the timeout again. Thread-safety: used by the program's main thread only.
#pragma once

#include <weft/rpc/agent/agent.h>

#include <chrono>
#include <string>

namespace weft::tool {

// Adds the scheme to an address: "host:port" becomes tcp://host:port, and a path that begins with / or ./
// becomes unix://path. Throws UsageError if the address is malformed.
std::string complete_address(const std::string& address);

class Client {
 public:
  // timeout: 0: no timeout. credentials: not used if they name no file. verbose: writes the agent's log to
  // stderr.
  Client(const std::string& address, std::chrono::nanoseconds timeout,
         const rpc::CredentialOptions& credentials = {}, bool verbose = false);

  const std::string& address() const { return address_; }
  const std::string& name() const { return agent_.name(); }  // the agent's name
  void restart() { began_ = rpc::Clock::now(); }
  rpc::Peer peer() { return timed(peer_); }  // its calls have the rest of the timeout
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

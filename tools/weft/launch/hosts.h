// Hosts: connects the launchers of one job on several hosts, one launcher for each host.
//
// Each launcher has an agent. The agents are members of a fixed world, whose store host 0 keeps at the
// rendezvous address. First the launchers exchange their shares. After that, each launcher is notified of the
// first failure on another host, and of the loss of a launcher or host. Owned by the launcher. Thread-safety:
// members are called on its main thread, `failed` on a thread of the agent.
#pragma once

#include <weft/rpc/security/credentials.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/weft/launch/job_plan.h"
#include "tools/weft/launch/supervisor.h"

namespace weft::tool::launch {

struct HostsOptions {
  std::size_t hosts = 2, own = 0;  // the number of hosts, and the number of this one
  std::string rendezvous;          // host:port of host 0
  rpc::CredentialOptions credentials;
  bool insecure = false;
};

// The data that each launcher sends to the others at their rendezvous.
struct HostGreeting {
  HostShare shares;
  std::uint16_t master_port = 0;  // from host 0: the port of rank 0
  std::string id;                 // from host 0: the job's id
  bool elastic_world = false;
};
WEFT_CODEC(HostGreeting, shares, master_port, id, elastic_world)

class Hosts {
 public:
  explicit Hosts(const HostsOptions& options);  // throws UsageError, rpc::Error
  ~Hosts();

  // Blocks until all hosts have connected. Returns their greetings by host number. Throws UsageError if they
  // do not agree.
  std::vector<HostGreeting> meet(const HostGreeting& own);
  void watch(std::function<void(const Failure&)> failed);
  void tell(const Failure& failure);  // sends the failure to the other hosts; does not block
  // Call it when the workers of this host have ended. Waits until the other hosts know that; host 0 also
  // waits until the workers of the other hosts have ended. Waits at most for `timeout`. stop(), on any
  // thread, ends the wait.
  void leave(std::chrono::nanoseconds timeout);
  void stop();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// A port of this host that is not in use, outside of the range from which the system assigns ports.
std::uint16_t free_port();

}  // namespace weft::tool::launch

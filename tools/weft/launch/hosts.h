// Hosts: the launchers of one job on several hosts, one a host, and what they tell each other.
//
// An agent each, members of a fixed world whose store host 0 keeps at the rendezvous address. They meet once,
// to learn of all shares; afterwards each hears of the others' first failure, and of a launcher or host that
// is lost. Owned by the launcher. Thread-safety: members are called by its main thread, `failed` on one of
// the agent's.
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
  std::size_t hosts = 2, own = 0;  // how many, and the number of this one
  std::string rendezvous;          // host:port of host 0
  rpc::CredentialOptions credentials;
  bool insecure = false;
};

// What each launcher tells the others at their rendezvous.
struct HostGreeting {
  HostShare shares;
  std::uint16_t master_port = 0;  // of host 0: where rank 0 is to listen
  std::string id;                 // of host 0: of the job
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
  void tell(const Failure& failure);  // returns at once
  // After the workers of this host have ended: waits until the others know of it, on host 0 until theirs have
  // ended, too, but no longer than `timeout`. May be ended by stop(), on any thread.
  void leave(std::chrono::nanoseconds timeout);
  void stop();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

// A port of this host that nobody has now, of those that the system gives to nobody by itself.
std::uint16_t free_port();

}  // namespace weft::tool::launch

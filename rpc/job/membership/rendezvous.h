// Rendezvous: how the agents of one job find each other. A value.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <string>

namespace weft::rpc {

// How the agents of one job find each other (job_membership.h).
struct Rendezvous {
  static constexpr std::size_t no_rank = static_cast<std::size_t>(-1);

  // tcp://host:port of the agent that keeps the store (or any other address of that agent), file:///path, or
  // etcd://host:port[,host:port][/prefix]. Each job has its own path or prefix.
  std::string store;
  // The rank of this agent. By default the agents of a job are named worker0, worker1, … Rank 0 is the host
  // (job_membership.h). no_rank: the agent has no rank, which is possible in an elastic world only.
  std::size_t rank = 0;
  std::size_t world_size = 0;  // the number of members of a fixed world
  bool fixed_world = true;     // true: the loss of a member fails the job on every member
  std::map<std::string, std::string> metadata = {};  // of this member: Member::metadata
  // A member that does not renew its lease for this time is lost. The agent's loops renew the lease, so busy
  // handlers do not delay the renewal; a program that blocks its own io_context for this time is lost. Choose
  // a lease that is longer than the longest pause of a healthy process. 0: no lease.
  std::chrono::nanoseconds lease = std::chrono::seconds{30};
};

}  // namespace weft::rpc

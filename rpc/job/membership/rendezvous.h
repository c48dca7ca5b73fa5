// Rendezvous: how the agents of one job find each other. A value.
#pragma once

#include <chrono>
#include <cstddef>
#include <map>
#include <memory>
#include <string>

namespace weft::rpc {

class ProgramStore;

// How the agents of one job find each other (job_membership.h).
struct Rendezvous {
  static constexpr std::size_t no_rank = static_cast<std::size_t>(-1);

  // tcp://host:port of the agent that keeps the store (or any other address of that agent), file:///path, or
  // etcd://host:port[,host:port][/prefix]. Each job has its own path or prefix. Empty with a program_store.
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
  // Instead of `store`: a key-value store of the program (rpc/job/store/program_store.h). Rank 0 keeps the
  // job's store in its agent, which listens on any address (AgentOptions::listen, also with port 0), and
  // writes its addresses to the program's store; the others find rank 0 there. program_prefix is the prefix
  // of the key. Each job in the same program's store has its own prefix, and so has each attempt to start a
  // job again; the key remains when the job has ended.
  std::shared_ptr<ProgramStore> program_store = nullptr;
  std::string program_prefix = "weft/";
};

}  // namespace weft::rpc

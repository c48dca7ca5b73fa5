// The plan of a job that `weft launch` starts: the workers of this host, and the environment of each.
//
// Pure: from the shares of all hosts, the same on each, follow ranks that no two workers share. Ranks go host
// by host, and within one in the order of its shares; a worker's rank within its role goes the same way.
// Thread-safety: none needed.
#pragma once

#include <weft/rpc/codec/struct_codec.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::tool::launch {

// Workers of one role that one host runs. Launchers tell each other of them.
struct RoleShare {
  std::string role;  // empty: the job has no roles
  std::uint64_t workers = 0;
};
WEFT_CODEC(RoleShare, role, workers)
using HostShare = std::vector<RoleShare>;

// "server=2" of the command line. Throws UsageError.
RoleShare parse_role(const std::string& text);

struct JobSettings {
  std::vector<HostShare> hosts;  // by node rank
  std::size_t node_rank = 0;
  std::string master_host;  // where rank 0 is, as every host reaches it
  std::uint16_t master_port = 0;
  std::string store;           // instead of that address; empty: none
  std::string id;              // of the job
  bool elastic_world = false;  // workers may come and go
  bool joins = false;          // these join a running elastic world at `store`, and have no ranks
  bool insecure = false;
  std::string secret_file;  // the launcher's, for the workers too; empty: none

  // This host's.
  std::vector<unsigned> cores;  // that workers may run on; those of one core side by side
  std::size_t processors = 1;   // how much of them workers may use together
  std::optional<std::size_t> threads;
  std::optional<std::string> own_threads;  // OMP_NUM_THREADS as the launcher has it
  bool pin = false;
};

struct WorkerPlan {
  std::size_t local_rank = 0;
  std::optional<std::size_t> rank;  // none: it joins an elastic world
  std::string role;                 // empty: none
  std::size_t role_rank = 0;
  std::string name;             // how the launcher calls it, and its log files
  std::vector<unsigned> cores;  // that it runs on; empty: whichever it likes
  // Beside the launcher's own. An empty value takes a variable away.
  std::map<std::string, std::string> environment;

  std::string title() const;  // for messages: "rank 3", "trainer1 (rank 3)", "trainer0"
};

// The workers of this host. Throws UsageError if the host has none, or fewer cores than pinning needs.
std::vector<WorkerPlan> plan_workers(const JobSettings& job);

}  // namespace weft::tool::launch

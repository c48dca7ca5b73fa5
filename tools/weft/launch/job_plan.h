// The plan of a job that `weft launch` starts: the workers of this host, and the environment of each.
//
// Each host computes the ranks from the same shares of all hosts, so no two workers have the same rank. Ranks
// increase by host, and within a host in the order of its shares. Ranks within a role are assigned in the
// same order. Thread-safety: pure functions.
#pragma once

#include <weft/rpc/codec/struct_codec.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::tool::launch {

// The workers of one role on one host. Launchers exchange these values.
struct RoleShare {
  std::string role;  // empty: the job has no roles
  std::uint64_t workers = 0;
};
WEFT_CODEC(RoleShare, role, workers)
using HostShare = std::vector<RoleShare>;

// Parses "server=2" of the command line. Throws UsageError if the text is malformed.
RoleShare parse_role(const std::string& text);

struct JobSettings {
  std::vector<HostShare> hosts;  // by node rank
  std::size_t node_rank = 0;
  std::string master_host;  // the host of rank 0, as every host reaches it
  std::uint16_t master_port = 0;
  std::string store;           // the store, which replaces the master's address and port; empty: none
  std::string detection = {};  // WEFT_DETECTION of the workers; empty: not set
  std::string id;              // the job's id
  bool elastic_world = false;  // workers may join and leave
  bool joins = false;          // the workers join a running elastic world at `store`, and have no ranks
  bool insecure = false;
  std::string secret_file;  // the launcher's secret; the workers also use it; empty: none

  // The resources of this host.
  std::vector<unsigned> cores;  // for the workers; hardware threads of one core are adjacent
  std::size_t processors = 1;   // the number of processors that the workers may use together
  std::optional<std::size_t> threads;
  std::optional<std::string> own_threads;  // OMP_NUM_THREADS of the launcher
  bool pin = false;
  // The ports of this host's workers by local rank, which WEFT_LISTEN states; empty: it is not set.
  std::vector<std::uint16_t> ports = {};
};

struct WorkerPlan {
  std::size_t local_rank = 0;
  std::optional<std::size_t> rank;  // nullopt: the worker joins an elastic world
  std::string role;                 // empty: none
  std::size_t role_rank = 0;
  std::string name;             // the name in the launcher's messages and of the log files
  std::vector<unsigned> cores;  // the worker runs on them; empty: on any
  // In addition to the launcher's variables. An empty value removes a variable.
  std::map<std::string, std::string> environment;

  std::string title() const;  // for messages: "rank 3", "trainer1 (rank 3)", "trainer0"
};

// The workers of this host. Throws UsageError if the host has none, or fewer cores than pinning needs.
std::vector<WorkerPlan> plan_workers(const JobSettings& job);

}  // namespace weft::tool::launch

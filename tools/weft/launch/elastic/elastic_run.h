// run_elastic(): runs the workers of an elastic job, on this host and on others, as the ElasticDriver
// decides.
//
// It connects the parts: the driver decides, Discovery finds hosts, the Supervisor runs processes, and the
// JobStore reports which workers have joined. If workers may outlive their driver, each worker has a keeper,
// and Takeover stores each decision before it is executed. All parts run on one thread, which runs an
// io_context.
#pragma once

#include <weft/rpc/security/credentials.h>

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/weft/launch/elastic/driver.h"
#include "tools/weft/launch/elastic/hosts_text.h"
#include "tools/weft/launch/elastic/job_store.h"
#include "tools/weft/launch/job_plan.h"

namespace weft::tool::launch::elastic {

struct ElasticJob {
  DriverOptions driver;
  std::vector<HostSlots> hosts;               // the fixed hosts, unless `discovery` is set
  std::optional<DiscoveryCommand> discovery;  // the command that lists the hosts
  std::size_t slots = 1;                      // the slots of a host for which discovery states no number
  std::chrono::nanoseconds poll = std::chrono::seconds{1};
  std::string id;
  std::string store;      // the store of the workers; with a tcp address this process keeps it
  bool reachable = true;  // other hosts can reach the store
  rpc::CredentialOptions credentials;
  bool insecure = false;
  std::string rsh = "ssh", remote_weft;
  std::vector<std::string>
      passed_variables;                // names of variables of this process, for workers on other hosts
  std::optional<std::size_t> threads;  // OMP_NUM_THREADS
  std::string detection;               // WEFT_DETECTION of the workers; empty: not set
  std::vector<std::string> command;
  std::string logs;
  bool prefix = true;
  std::string grace = "10s";
  // How long workers continue without a driver, until another driver takes over (takeover.h). 0: no worker
  // outlives its driver. Otherwise the store is a file or etcd.
  std::string orphan_wait = "0s";
};

// Returns the exit status: 0 if the job has succeeded, 1 if it has failed, 128 plus the number of a signal
// that ended it. Throws UsageError if an option is invalid.
int run_elastic(const ElasticJob& job);

// The plan of one worker: its name, its rank and its variables. A pure function.
WorkerPlan plan_worker(const ElasticJob& job, const StartWorker& start);

// What the driver knows of a worker's membership of the job.
struct Membership {
  std::uint64_t before = 0;  // the last incarnation of the worker before this one, which had the same name
  // The incarnation that has joined. nullopt: the worker has not joined, or has left. 0: the worker has
  // joined under another driver, and this driver has not seen its record.
  std::optional<std::uint64_t> incarnation = {};
  bool failed = false;  // the driver knows that the worker is lost or excluded
};
// The next event that follows from the worker's record and exclusion in the store (JobStore), and updates
// `known`. nullopt: nothing is new. It has no I/O.
std::optional<Event> news_of(WorkerId worker, Membership& known, const rpc::MemberRecord* record,
                             const JobStore::Exclusion* exclusion);

}  // namespace weft::tool::launch::elastic

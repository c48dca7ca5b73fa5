// run_elastic(): runs the workers of an elastic job, on this host and on others, as the ElasticDriver
// decides.
//
// It joins the parts: the driver decides, Discovery finds hosts, the Supervisor runs processes, and the
// JobStore says which workers have joined. If workers may outlive their driver, each has a keeper, and
// Takeover stores each decision before it is executed. One thread, that of the io_context which it makes.
#pragma once

#include <weft/rpc/security/credentials.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "tools/weft/launch/elastic/driver.h"
#include "tools/weft/launch/elastic/hosts_text.h"
#include "tools/weft/launch/job_plan.h"

namespace weft::tool::launch::elastic {

struct ElasticJob {
  DriverOptions driver;
  std::vector<HostSlots> hosts;               // fixed ones; or
  std::optional<DiscoveryCommand> discovery;  // the command that lists them
  std::size_t slots = 1;                      // of a host that discovery names without a number
  std::chrono::nanoseconds poll = std::chrono::seconds{1};
  std::string id;
  std::string store;      // for the workers; at a tcp address this process keeps it
  bool reachable = true;  // it from other hosts
  rpc::CredentialOptions credentials;
  bool insecure = false;
  std::string rsh = "ssh", remote_weft;
  std::vector<std::string>
      passed_variables;                // names of variables of this process, for workers on other hosts
  std::optional<std::size_t> threads;  // OMP_NUM_THREADS
  std::vector<std::string> command;
  std::string logs;
  bool prefix = true;
  std::string grace = "10s";
  // How long workers continue without a driver, until another driver takes over (takeover.h). 0: no worker
  // outlives its driver. Otherwise the store is a file or etcd.
  std::string orphan_wait = "0s";
};

// The exit status: 0 if the job has succeeded, 1 if it has failed, 128 and a signal that ended it. Throws
// UsageError.
int run_elastic(const ElasticJob& job);

// The plan of one worker: its name, its rank and its variables. Pure.
WorkerPlan plan_worker(const ElasticJob& job, const StartWorker& start);

}  // namespace weft::tool::launch::elastic

#include "tools/weft/launch/job_plan.h"

#include <weft/rpc/transport/address.h>

#include <algorithm>
#include <charconv>

#include "tools/weft/errors.h"

namespace weft::tool::launch {
namespace {

constexpr std::uint64_t max_workers = 100'000;  // the maximum number of workers of a role on one host

std::size_t workers_of(const HostShare& host) {
  std::size_t workers = 0;
  for (const RoleShare& share : host) workers += share.workers;
  return workers;
}

// The value of OMP_NUM_THREADS for each worker: an equal part of the processors, unless an option or the
// shell sets it.
std::string threads_of(const JobSettings& job, std::size_t workers) {
  if (job.threads) return std::to_string(*job.threads);
  if (job.own_threads && !job.own_threads->empty()) return *job.own_threads;
  return std::to_string(std::max<std::size_t>(1, job.processors / workers));
}

// Each worker gets an equal number of cores. The remaining cores stay unused, because a worker with more
// cores would only wait for the others.
std::vector<unsigned> part_of(const JobSettings& job, std::size_t local_rank, std::size_t workers) {
  const std::size_t part = job.cores.size() / workers, wanted = job.threads.value_or(1);
  if (part < std::max<std::size_t>(1, wanted))
    throw UsageError("--pin: " + std::to_string(workers) + " workers of " + std::to_string(wanted) +
                     (wanted == 1 ? " thread" : " threads") + " need more than the " +
                     std::to_string(job.cores.size()) + " cores that may be used here");
  const auto first = job.cores.begin() + static_cast<std::ptrdiff_t>(local_rank * part);
  return {first, first + static_cast<std::ptrdiff_t>(part)};
}

// Sets the variables of a worker that has a rank: torchrun's variables and weft's own.
void tell_place(const JobSettings& job, WorkerPlan& worker, std::size_t world, std::size_t of_role) {
  auto& variables = worker.environment;
  variables["RANK"] = std::to_string(*worker.rank);
  variables["WORLD_SIZE"] = std::to_string(world);
  variables["GROUP_RANK"] = std::to_string(job.node_rank);
  variables["GROUP_WORLD_SIZE"] = std::to_string(job.hosts.size());
  variables["ROLE_NAME"] = worker.role.empty() ? "default" : worker.role;
  variables["ROLE_RANK"] = std::to_string(worker.role_rank);
  variables["ROLE_WORLD_SIZE"] = std::to_string(of_role);
  variables["MASTER_ADDR"] = job.master_host;
  variables["MASTER_PORT"] = std::to_string(job.master_port);
  variables["TORCHELASTIC_RUN_ID"] = job.id;
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  variables["TORCHELASTIC_MAX_RESTARTS"] = "0";
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";  // rank 0 listens on the port
  variables["WEFT_NAME"] = worker.name;
  if (!worker.role.empty()) {
    variables["WEFT_ROLE_RANK"] = std::to_string(worker.role_rank);
    variables["WEFT_ROLE_SIZE"] = std::to_string(of_role);
  }
}

// A worker that joins must not inherit the ranks in the launcher's own environment.
void tell_no_place(WorkerPlan& worker) {
  for (const char* name :
       {"RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "MASTER_ADDR",
        "MASTER_PORT", "WEFT_NAME", "WEFT_ROLE_RANK", "WEFT_ROLE_SIZE"})
    worker.environment[name] = "";
}

}  // namespace

RoleShare parse_role(const std::string& text) {
  const std::size_t sign = text.find('=');
  RoleShare share{text.substr(0, sign), 1};
  const auto valid = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  // The role is part of the names of agents and files. With a digit at its end, names would be ambiguous:
  // worker 1 of the role "server1" would be "server11".
  if (share.role.empty() || !std::all_of(share.role.begin(), share.role.end(), valid) ||
      (share.role.back() >= '0' && share.role.back() <= '9'))
    throw UsageError("--role '" + text +
                     "': malformed role, expected letters, digits, _ and -, without a digit at the end");
  if (sign == std::string::npos) return share;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data() + sign + 1, last, share.workers);
  if (error != std::errc{} || end != last || share.workers == 0 || share.workers > max_workers)
    throw UsageError("--role '" + text + "': no number of workers, expected for example " + share.role +
                     "=2");
  return share;
}

std::string WorkerPlan::title() const {
  if (!rank) return name;
  const std::string number = "rank " + std::to_string(*rank);
  return role.empty() ? number : name + " (" + number + ")";
}

std::vector<WorkerPlan> plan_workers(const JobSettings& job) {
  const HostShare& own = job.hosts.at(job.node_rank);
  const std::size_t here = workers_of(own);
  if (here == 0 || here > max_workers)
    throw UsageError("the number of workers on this host: expected 1 to 100000");
  std::size_t world = 0, next = 0;  // next: the first rank of this host
  std::map<std::string, std::size_t> of_role, next_of_role;
  for (std::size_t host = 0; host < job.hosts.size(); ++host) {
    if (host == job.node_rank) next = world, next_of_role = of_role;
    for (const RoleShare& share : job.hosts[host]) of_role[share.role] += share.workers;
    world += workers_of(job.hosts[host]);
  }
  const std::string threads = threads_of(job, here);
  std::vector<WorkerPlan> workers;
  for (const RoleShare& share : own)
    for (std::uint64_t i = 0; i < share.workers; ++i) {
      WorkerPlan worker;
      worker.local_rank = workers.size();
      worker.role = share.role;
      worker.role_rank = next_of_role[share.role]++;
      if (!job.joins) worker.rank = next++;
      worker.name = share.role.empty() ? "worker" + std::to_string(worker.rank.value_or(worker.role_rank))
                                       : share.role + std::to_string(worker.role_rank);
      if (job.pin) worker.cores = part_of(job, worker.local_rank, here);
      auto& variables = worker.environment;
      if (job.joins)
        tell_no_place(worker);
      else
        tell_place(job, worker, world, of_role[share.role]);
      variables["LOCAL_RANK"] = std::to_string(worker.local_rank);
      variables["LOCAL_WORLD_SIZE"] = std::to_string(here);
      variables["OMP_NUM_THREADS"] = threads;
      variables["WEFT_ROLE"] = share.role;
      if (!job.store.empty()) variables["WEFT_STORE"] = job.store;
      if (job.elastic_world || job.joins) variables["WEFT_ELASTIC_WORLD"] = "1";
      if (job.insecure) variables["WEFT_INSECURE"] = "1";
      if (!job.detection.empty()) variables["WEFT_DETECTION"] = job.detection;
      if (!job.ports.empty())
        variables["WEFT_LISTEN"] =
            rpc::Address{"tcp", job.master_host, std::to_string(job.ports.at(worker.local_rank)), ""}.text();
      // Passes the path of the file, not its contents. A certificate is not passed on, because it names the
      // launcher.
      if (!job.secret_file.empty()) variables["WEFT_SECRET"] = job.secret_file;
      workers.push_back(std::move(worker));
    }
  return workers;
}

}  // namespace weft::tool::launch

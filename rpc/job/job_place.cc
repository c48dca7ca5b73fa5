#include <weft/rpc/job/job_place.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/core/fixed_string.h>
#include <weft/rpc/core/parse_number.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <map>
#include <utility>

namespace weft::rpc {
namespace detail {
namespace {

// Below the ports that Linux assigns to connections automatically, to avoid collisions.
constexpr std::uint64_t first_port = 15000, ports = 15000;

bool is_set(const VariableLookup& lookup, const std::string& name) {
  const auto text = lookup(name);
  return text && !text->empty();
}

std::optional<std::uint64_t> number(const VariableLookup& lookup, const std::string& name) {
  const auto text = lookup(name);
  if (!text || text->empty()) return std::nullopt;
  const auto value = parse_number<std::uint64_t>(*text);
  if (!value) throw Error(ErrorKind::invalid_argument, name + "='" + *text + "' is not a number");
  return value;
}

std::string text_or_none(const VariableLookup& lookup, const char* name) { return lookup(name).value_or(""); }

std::uint16_t port_of(std::uint64_t job) { return static_cast<std::uint16_t>(first_port + job % ports); }

// "1234.0;tcp://10.0.0.1,192.168.0.1:35881;tcp6://[fd00::1]:34931": the addresses of mpirun's host.
std::vector<std::string> hosts_of_uri(const std::string& uri) {
  std::vector<std::string> hosts;
  constexpr std::string_view scheme = ";tcp://";
  const std::size_t begin = uri.find(scheme);
  if (begin == std::string::npos) return hosts;
  const std::string list =
      uri.substr(begin + scheme.size(), uri.find(';', begin + 1) - begin - scheme.size());
  const std::size_t end = list.rfind(':');
  for (std::size_t at = 0; at < std::min(end, list.size());) {
    const std::size_t next = std::min({list.find(',', at), end, list.size()});
    const std::string host = list.substr(at, next - at);
    if (!host.empty() && !host.starts_with("127.")) hosts.push_back(host);
    at = next + 1;
  }
  return hosts;
}

// A launcher that states the rank and the size of the job, but neither rank 0's host nor a port.
struct Ranks {
  const char *system, *rank, *size, *local_size;  // local_size: the processes on this host; may be null
};
constexpr Ranks all_ranks[] = {
    {"MVAPICH", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_SIZE"},
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE"},
    {"Flux", "FLUX_TASK_RANK", "FLUX_JOB_SIZE", nullptr},
    {"MPICH or Intel MPI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"},
};
// Launchers that state only the rank.
constexpr Ranks rank_only[] = {
    {"PALS", "PALS_RANKID", nullptr, nullptr},        {"ALPS", "ALPS_APP_PE", nullptr, nullptr},
    {"Platform MPI", "MPI_RANKID", nullptr, nullptr}, {"PMI", "PMI_RANK", nullptr, nullptr},
    {"PMIx", "PMIX_RANK", nullptr, nullptr},
};

bool is_slurm_task(const VariableLookup& lookup) {
  return is_set(lookup, "SLURM_PROCID") && is_set(lookup, "SLURM_STEP_NUM_TASKS");
}

// Null: none of them has started this process as one of several.
const Ranks* ranks_of(const VariableLookup& lookup) {
  for (const Ranks& one : all_ranks) {
    if (!is_set(lookup, one.rank) || !is_set(lookup, one.size) || lookup(one.size) == "1") continue;
    // srun sets these variables, too. But if mpiexec runs in a Slurm job, only its daemons are Slurm's tasks.
    const bool by_srun = is_slurm_task(lookup) && lookup(one.rank) == lookup("SLURM_PROCID") &&
                         lookup(one.size) == lookup("SLURM_STEP_NUM_TASKS");
    if (!by_srun) return &one;
  }
  if (is_slurm_task(lookup)) return nullptr;
  for (const Ranks& one : rank_only)
    if (is_set(lookup, one.rank) && !(one.rank == std::string_view("PMI_RANK") && lookup("PMI_SIZE") == "1"))
      return &one;
  return nullptr;
}

std::optional<std::string> batch_system(const VariableLookup& lookup) {
  if (is_set(lookup, "OMPI_COMM_WORLD_RANK") && is_set(lookup, "OMPI_COMM_WORLD_SIZE")) return "OpenMPI";
  if (const Ranks* const ranks = ranks_of(lookup)) return ranks->system;
  // A batch script also has SLURM_PROCID, but a batch script is not a step: processes that it starts without
  // srun are not tasks.
  if (is_slurm_task(lookup)) return "Slurm";
  if (is_set(lookup, "JOB_COMPLETION_INDEX")) return "Kubernetes";
  // Some platforms set TF_CONFIG without a cluster in every process.
  if (text_or_none(lookup, "TF_CONFIG").find("\"cluster\"") != std::string::npos) return "TF_CONFIG";
  return std::nullopt;
}

JobPlace place_by_openmpi(const VariableLookup& lookup) {
  const auto rank = number(lookup, "OMPI_COMM_WORLD_RANK"), size = number(lookup, "OMPI_COMM_WORLD_SIZE");
  JobPlace place{"OpenMPI", *rank, size, number(lookup, "OMPI_COMM_WORLD_LOCAL_SIZE") == size, {}, {}};
  place.hosts = hosts_of_uri(text_or_none(lookup, "OMPI_MCA_orte_hnp_uri"));
  for (const char* name : {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"})
    if (const std::string job = text_or_none(lookup, name); !job.empty() && !place.port) {
      place.port = port_of(name_hash(job));
      place.job = job;
    }
  return place;
}

JobPlace place_by_ranks(const Ranks& ranks, const VariableLookup& lookup) {
  const auto size = ranks.size == nullptr ? std::nullopt : number(lookup, ranks.size);
  const auto local = ranks.local_size == nullptr ? std::nullopt : number(lookup, ranks.local_size);
  return {ranks.system, *number(lookup, ranks.rank), size, size && local == size, {}, {}};
}

JobPlace place_by_slurm(const VariableLookup& lookup) {
  const auto rank = number(lookup, "SLURM_PROCID"), size = number(lookup, "SLURM_STEP_NUM_TASKS");
  JobPlace place{"Slurm", *rank, size, number(lookup, "SLURM_STEP_NUM_NODES") == std::uint64_t{1}, {}, {}};
  for (const std::string& host : {first_of_hostlist(text_or_none(lookup, "SLURM_STEP_NODELIST")),
                                  text_or_none(lookup, "SLURM_LAUNCH_NODE_IPADDR")})
    if (!host.empty()) place.hosts.push_back(host);
  // Consecutive jobs, and the steps of a job, have different ports.
  if (const auto job = number(lookup, "SLURM_JOB_ID")) {
    const std::uint64_t step = number(lookup, "SLURM_STEP_ID").value_or(0);
    place.port = port_of(*job + 1009 * step);
    place.job = std::to_string(*job) + "." + std::to_string(step);
  }
  return place;
}

// Each pod has its own network, in which any port is free.
JobPlace place_by_kubernetes(const VariableLookup& lookup) {
  return {"Kubernetes", *number(lookup, "JOB_COMPLETION_INDEX"), std::nullopt, false, {}, 29500};
}

// The order of TensorFlow's roles. The chief is rank 0; without a chief, worker 0 is rank 0.
std::size_t order_of(const std::string& role) {
  constexpr std::string_view first[] = {"chief", "master", "worker", "ps"};
  return static_cast<std::size_t>(std::find(std::begin(first), std::end(first), role) - std::begin(first));
}

JobPlace place_by_tf_config(const VariableLookup& lookup) {
  using Json = nlohmann::json;
  const auto malformed = [](const std::string& why) {
    return Error(ErrorKind::invalid_argument, "TF_CONFIG: " + why);
  };
  std::map<std::pair<std::size_t, std::string>, std::vector<std::string>> cluster;
  JobPlace place{"TF_CONFIG", 0, 0, false, {}, {}};
  try {
    const Json config = Json::parse(text_or_none(lookup, "TF_CONFIG"));
    for (const auto& [role, addresses] : config.at("cluster").items())
      cluster[{order_of(role), role}] = addresses.get<std::vector<std::string>>();
    place.role = config.at("task").at("type").get<std::string>();
    place.role_rank = config.at("task").at("index").get<std::uint64_t>();
  } catch (const Json::exception& error) {
    throw malformed(error.what());
  }
  bool found = false;
  std::uint64_t size = 0;
  for (const auto& [key, addresses] : cluster) {
    if (key.second == place.role && place.role_rank < addresses.size()) {
      found = true;
      place.rank = size + place.role_rank;
    }
    if (size == 0 && !addresses.empty()) {
      const std::string& first = addresses.front();
      const std::size_t colon = first.rfind(':');
      std::uint16_t port = 0;
      const char* const last = first.data() + first.size();
      if (colon == std::string::npos || std::from_chars(first.data() + colon + 1, last, port).ptr != last)
        throw malformed("'" + first + "' is not an address, expected HOST:PORT");
      place.hosts.push_back(first.substr(0, colon));
      place.port = port;
    }
    size += addresses.size();
  }
  if (!found)
    throw malformed("the task '" + place.role + "' " + std::to_string(place.role_rank) +
                    " is not in its cluster");
  place.world_size = size;
  place.certain = true;
  return place;
}

}  // namespace

std::string first_of_hostlist(const std::string& list) {
  std::string host;
  for (std::size_t at = 0; at < list.size() && list[at] != ','; ++at) {
    if (list[at] != '[') {
      host += list[at];
      continue;
    }
    const std::size_t end = list.find_first_of("-,]", at);
    const std::size_t close = list.find(']', at);
    if (close == std::string::npos) return "";
    host += list.substr(at + 1, end - at - 1);
    at = close;
  }
  return host;
}

std::optional<std::string> variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

std::optional<JobPlace> job_place(const VariableLookup& lookup) {
  const auto system = batch_system(lookup);
  if (!system) return std::nullopt;
  if (*system == "OpenMPI") return place_by_openmpi(lookup);
  if (const Ranks* const ranks = ranks_of(lookup)) return place_by_ranks(*ranks, lookup);
  if (*system == "Slurm") return place_by_slurm(lookup);
  if (*system == "Kubernetes") return place_by_kubernetes(lookup);
  return place_by_tf_config(lookup);
}

}  // namespace detail

std::optional<std::string> started_by(const VariableLookup& lookup) {
  if (detail::is_set(lookup, "RANK")) return "a launcher";
  if (detail::is_set(lookup, "WEFT_STORE") && lookup("WEFT_ELASTIC_WORLD") == "1") return "an elastic world";
  return detail::batch_system(lookup);
}

std::optional<std::string> started_by() { return started_by(detail::variable); }

}  // namespace weft::rpc

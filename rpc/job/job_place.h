// started_by(): whether this process was started as part of a job. JobPlace: the rank, hosts and role of this
// process in the job, according to the variables of a batch system.
//
// The functions read only variables. JobPlace is used only if RANK is not set (environment.h states the
// order). Thread-safety: functions without state.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

// The system that started this process as part of a job, according to the variables that from_environment()
// reads: "a launcher" if RANK is set (by weft launch, torchrun, Kubeflow's PyTorchJob, or manually),
// "OpenMPI", another launcher of MPI programs (docs/launching.md), "Slurm", "Kubernetes", "TF_CONFIG", or "an
// elastic world" that the process should join. nullopt: no system has started this process as part of a job,
// so it may start the processes of a job itself. Does not validate the variables; from_environment() does.
WEFT_EXPORT std::optional<std::string> started_by();
// Returns the value of an environment variable. nullopt: the variable is not set.
using VariableLookup = std::function<std::optional<std::string>(const std::string& name)>;
// Like started_by(), with the variables of `lookup`.
WEFT_EXPORT std::optional<std::string> started_by(const VariableLookup& lookup);

namespace detail {

// The variable of this process with that name.
std::optional<std::string> variable(const std::string& name);

struct JobPlace {
  std::string system;  // for messages: "Slurm"
  std::uint64_t rank = 0;
  std::optional<std::uint64_t> world_size;  // nullopt: the system does not state it
  bool one_host = false;                    // true: all processes of the job are on this host
  // Candidates for the host of rank 0, the most reliable first. A numeric address is the address of the host
  // that started the job; it is only a convention that rank 0 runs on that host.
  std::vector<std::string> hosts;
  // The port for the store of rank 0. It is equal in all processes of the job, and differs from the port of
  // the next job.
  std::optional<std::uint16_t> port;
  std::string job = {};   // the identity of the job; empty: the system does not state it
  std::string role = {};  // of this process; empty: the job has no roles
  std::uint64_t role_rank = 0;
  // true: the first of `hosts` is the host of rank 0, even if its name cannot be resolved yet.
  bool certain = false;
};

// The place according to OpenMPI, other launchers of MPI programs, Slurm, a Kubernetes indexed job or
// TF_CONFIG, in this order. MPI is first: in a Slurm job, mpirun starts only its daemons as tasks of Slurm,
// so Slurm's variables do not describe the ranks. The other launchers state only ranks. TF_CONFIG has the
// format of Kubeflow's TFJob: a list of addresses for each role, and the entry of this process. Ranks are
// assigned role by role: first chief, master, worker and ps, then all other roles by name. The position of a
// process in the list of its role is its role_rank. nullopt if no system has set its variables. Throws
// invalid_argument if a variable is malformed (the text names the variable).
WEFT_EXPORT std::optional<JobPlace> job_place(const VariableLookup& lookup);

// The first host of a list in Slurm's format: "gpu[07-09,12],cpu1" begins with gpu07.
WEFT_EXPORT std::string first_of_hostlist(const std::string& list);

}  // namespace detail
}  // namespace weft::rpc

// started_by(): whether this process was started as one of a job. JobPlace: what a batch system says of its
// place there, in variables of its own.
//
// Pure: from the variables alone. A place is read where RANK is not set (environment.h says in which order).
// Thread-safety: none needed.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

// Who has started this process as one of a job, by the variables that from_environment() goes by:
// "a launcher" where RANK is set (by weft launch, torchrun, Kubeflow's PyTorchJob, or by hand), "OpenMPI",
// "Slurm", "Kubernetes", "TF_CONFIG" or "an elastic world" that it is to come to. None: nobody has, and it
// may start such processes itself. Whether these variables are right, from_environment() says.
WEFT_EXPORT std::optional<std::string> started_by();
// The same, given the variables.
WEFT_EXPORT std::optional<std::string> started_by(
    const std::function<std::optional<std::string>(const std::string& name)>& lookup);

namespace detail {

struct JobPlace {
  std::string system;  // for messages: "Slurm"
  std::uint64_t rank = 0;
  std::optional<std::uint64_t> world_size;  // none: it does not say it
  bool one_host = false;                    // all of the job are on this host
  // Where rank 0 is, the most reliable first. Where such a host is an address in digits, it is that of
  // whoever started the job, and rank 0 only by the usual custom.
  std::vector<std::string> hosts;
  std::optional<std::uint16_t>
      port;               // for rank 0's store: the same for all of the job, another one for the next
  std::string role = {};  // of this process; empty: the job has no roles
  std::uint64_t role_rank = 0;
  bool certain = false;  // the first of `hosts` is rank 0's, also if nobody knows the name yet
};

// Of OpenMPI, Slurm, a Kubernetes indexed job or TF_CONFIG, in this order: mpirun within a Slurm job starts
// its daemons, not its ranks, as Slurm's tasks. TF_CONFIG is that of Kubeflow's TFJob: a list of addresses
// for each role, and which of them is this process. Ranks follow the roles chief, master, worker, ps and then
// all others by name; a role's number in the list is the role's rank. None: there are no such variables.
// Throws invalid_argument naming one that is malformed.
WEFT_EXPORT std::optional<JobPlace> job_place(
    const std::function<std::optional<std::string>(const std::string& name)>& lookup);

// The first host of a list as Slurm writes it: "gpu[07-09,12],cpu1" begins with gpu07.
WEFT_EXPORT std::string first_of_hostlist(const std::string& list);

}  // namespace detail
}  // namespace weft::rpc

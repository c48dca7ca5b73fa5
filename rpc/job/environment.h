// from_environment(), from_url(), from_program_store() and agent_from_environment(): the options of an agent
// as its launcher states them.
//
// Job::from_environment() and Job::from_url() call these functions. They read the variables of the process
// and the addresses of this host. Thread-safety: any thread, while no thread changes the environment.
#pragma once

#include <weft/rpc/job/job.h>
#include <weft/rpc/job/job_place.h>
#include <weft/rpc/job/store/program_store.h>

#include <functional>

namespace weft::rpc {

// The options of an agent, from the variables that weft launch, torchrun and others set:
//   RANK, WORLD_SIZE          the agent's rank, and the number of ranks
//   MASTER_ADDR, MASTER_PORT  where rank 0 keeps the store. torchrun (TORCHELASTIC_USE_AGENT_STORE=True) has
//                             its own store at that port: then the port is MASTER_PORT + 1
//   WEFT_STORE_PORT           the store's port, instead of the port above
//   WEFT_STORE                the store instead of all these: tcp://host:port of rank 0, file:///path, or
//                             etcd://host:port[,host:port][/prefix]
//   WEFT_ELASTIC_WORLD=1      agents may join and leave. With WEFT_STORE and without RANK, the agent joins an
//                             existing job and needs no rank
//   WEFT_NAME                 the agent's name; by default worker<RANK>, or a unique name without RANK
//   WEFT_ROLE, WEFT_ROLE_RANK the metadata `role` and `role_rank`
//   WEFT_JOB                  the metadata `weft.job`: an identity that all ranks of a fixed world share, so
//   that no
//                             rank of another job takes part by mistake; by default TORCHELASTIC_RUN_ID, or
//                             the id of the Slurm step or the OpenMPI job
//   WEFT_HOST                 this host, as the others reach it; by default this host's address on the route
//                             to MASTER_ADDR (127.0.0.1 if MASTER_ADDR is this host)
//   WEFT_LISTEN               the agent's addresses, separated by commas; by default rank 0 listens at the
//                             store's address, other agents on any free port of WEFT_HOST
//   WEFT_INSECURE=1           permits addresses beyond this host, and other users on it, without credentials
//   WEFT_CERTIFICATE, WEFT_KEY, WEFT_TRUST, WEFT_SECRET   files of the agent's credentials
// If RANK is not set, the rank, the world size, the host of rank 0 and a port come from OpenMPI, a Slurm
// step, a Kubernetes indexed job or TF_CONFIG; the rank and the world size also from other launchers of MPI
// programs. Each variable above takes precedence if it is set (docs/launching.md). Throws invalid_argument if
// a variable is missing or malformed (the text names the variable), unavailable if there is no route to
// MASTER_ADDR.
WEFT_EXPORT MemberOptions from_environment();

// The options of an agent whose job is stated by one URL, as in PyTorch's init_method:
//   env://                                  all options come from the environment
//   tcp://host:port?rank=R&world_size=N     rank 0 keeps the store, at that address
//   file:///path?rank=R&world_size=N        the store is a file that all agents share
//   etcd://host:port[,host:port][/prefix]?rank=R&world_size=N
// The URL takes precedence over the environment. Values that the URL lacks, including rank and world_size,
// come from the environment as in from_environment(), with the same rule for agents without a rank
// (WEFT_ELASTIC_WORLD). Throws as from_environment() does, and invalid_argument if the URL is malformed (the
// text names the part).
WEFT_EXPORT MemberOptions from_url(const std::string& url);

// The options of a member of a fixed world whose ranks meet through a store of the program, under a prefix
// (Rendezvous::program_store). The rank and the size come from the program, and all other values from the
// environment as in from_environment(). Rank 0 listens as the other ranks do: at WEFT_LISTEN, or on any free
// port of WEFT_HOST, by default of this host's address on the route to MASTER_ADDR, or of 127.0.0.1 if
// neither is set. Throws as from_environment() does.
WEFT_EXPORT MemberOptions from_program_store(std::shared_ptr<ProgramStore> store, std::string prefix,
                                             std::size_t rank, std::size_t world_size);

// The options of an agent that is not a member of a job: the addresses and credentials that a member has.
// towards: the host that precedes MASTER_ADDR; empty: none. Throws as from_environment() does.
WEFT_EXPORT AgentOptions agent_from_environment(const std::string& towards = {});

// Like the functions above. lookup: returns the value of a variable. towards: returns this
// host's address on the route to a host (local_address_towards).
using LocalAddress = std::function<std::string(const std::string& host)>;
WEFT_EXPORT MemberOptions options_from(const VariableLookup& lookup, const LocalAddress& towards);
WEFT_EXPORT MemberOptions options_from(const std::string& url, const VariableLookup& lookup,
                                       const LocalAddress& towards);
WEFT_EXPORT MemberOptions options_from(std::shared_ptr<ProgramStore> store, std::string prefix,
                                       std::size_t rank, std::size_t world_size, const VariableLookup& lookup,
                                       const LocalAddress& towards);

}  // namespace weft::rpc

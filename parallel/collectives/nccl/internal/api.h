// Api: the functions of NCCL that weft calls.
//
// It is a table of functions that is filled when the program runs, so that weft does not link NCCL:
// LibTorch's wheels for CUDA contain libnccl.so.2. A fake supplies other functions
// (tests/support/fake_nccl.h). Names are NCCL's without `nccl`. Immutable after creation. As thread-safe as
// NCCL: one thread at a time may use a communicator.
#pragma once

#include <weft/parallel/collectives/nccl/internal/abi.h>
#include <weft/rpc/core/error.h>

#include <functional>
#include <memory>
#include <string>

namespace weft::collectives::nccl {

struct WEFT_EXPORT Api {
  // A function of the library.
  template <class Signature>
  using Function = std::function<Signature>;

  // Loads the library at `path`; empty: the libnccl.so.2 that the process has already loaded or, if there is
  // none, the libnccl.so.2 that the dynamic loader finds. Throws unsupported, which names the missing part; a
  // library before 2.19 is too old.
  static std::shared_ptr<const Api> load(const std::string& path = "");

  int version = 0;                   // 22809 is 2.28.9
  std::string version_text() const;  // "2.28.9"

  // Creation and end of communicators, and their errors.
  Function<Result(UniqueId*)> get_unique_id;
  Function<Result(Comm**, int ranks, UniqueId, int rank, Config*)> comm_init_rank_config;
  Function<Result(Comm*)> comm_finalize, comm_destroy, comm_abort;
  Function<Result(Comm*, Result*)> comm_get_async_error;
  Function<const char*(Result)> get_error_string;
  Function<const char*(Comm*)> get_last_error;

  // Work on a stream. Calls between group_start and group_end of one thread become one launch. Counts are of
  // elements: of one rank's part for all_gather and reduce_scatter.
  Function<Result()> group_start, group_end;
  Function<Result(const void*, void*, std::size_t, DataType, RedOp, Comm*, Stream)> all_reduce;
  Function<Result(const void*, void*, std::size_t, DataType, RedOp, int root, Comm*, Stream)> reduce;
  Function<Result(const void*, void*, std::size_t, DataType, int root, Comm*, Stream)> broadcast;
  Function<Result(const void*, void*, std::size_t, DataType, Comm*, Stream)> all_gather;
  Function<Result(const void*, void*, std::size_t, DataType, RedOp, Comm*, Stream)> reduce_scatter;
  Function<Result(const void*, std::size_t, DataType, int peer, Comm*, Stream)> send;
  Function<Result(void*, std::size_t, DataType, int peer, Comm*, Stream)> recv;
  Function<Result(RedOp*, void* factor, DataType, Residence, Comm*)> red_op_create_premul_sum;
  Function<Result(RedOp, Comm*)> red_op_destroy;
};

// The error for a result other than success, with NCCL's own text. comm: null if there is no communicator, or
// not yet. Call it on a thread that may use the communicator.
//  remote_error  peer_lost          another rank, or the connection to it, failed
//  system_error  unavailable        this host's network or memory; another communicator may work
//  timeout       deadline_exceeded  a timeout of NCCL has passed
//  invalid_*     invalid_argument, failed_precondition
//  others        internal           of CUDA or NCCL: cannot be repaired in this process
WEFT_EXPORT rpc::Error error_of(const Api& api, Result result, Comm* comm, const std::string& what);
WEFT_EXPORT rpc::ErrorKind kind_of(Result result);

}  // namespace weft::collectives::nccl

// ProgramStore: a key-value store of the program or of its launcher, by which the agents of a job meet.
//
// A program that has such a store already, for example PyTorch's c10d::Store, implements this interface and
// passes it in Rendezvous::program_store. The store needs neither watches nor leases: rank 0 writes one key,
// and the other ranks read it. From then on, the agents use the store that rank 0's agent keeps.
//
// Each call runs on a thread that exists for that call, so the functions may block. If the agent ends during
// a call, the thread continues until the call returns; it shares the ownership of the store meanwhile. An
// exception ends the join: a rpc::Error with its kind, any other exception as unavailable. Thread-safety: an
// agent makes one call at a time; several agents may share a store only if it is thread-safe.
#pragma once

#include <weft/rpc/core/export.h>

#include <chrono>
#include <optional>
#include <string>

namespace weft::rpc {

class WEFT_EXPORT ProgramStore {
 public:
  virtual ~ProgramStore() = default;

  // Replaces the value of an existing key. Values are text of a few hundred bytes.
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists, at most `timeout`, which is about a second; the agent repeats the call.
  // nullopt: the key does not exist.
  virtual std::optional<std::string> get(const std::string& key, std::chrono::nanoseconds timeout) = 0;
};

}  // namespace weft::rpc

// Runtime: what an agent runs on: its loops, where its handlers run, which incarnation of its name it is, and
// the ways to peers.
//
// An agent makes its own, out of threads, sockets and the system's randomness; one that is given (a
// simulation does) must be run by whoever made it, and outlives the agent's shut_down(), which then neither
// waits for the loops nor for handlers: what is queued on them runs later, and finds that the agent has
// ended.
#pragma once

#include <weft/rpc/core/executor.h>
#include <weft/rpc/core/loop.h>
#include <weft/rpc/core/process_id.h>
#include <weft/rpc/transport/transport.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace weft::rpc {

struct Runtime {
  std::vector<std::shared_ptr<Loop>> loops;  // one at least
  std::shared_ptr<Executor> handlers;
  std::uint64_t incarnation = 0;  // no other incarnation of this name had it; never 0
  std::uint64_t id_seed = 0;  // random, and told to nobody (rpc/core/id_map.h); a simulation repeats its own
  std::vector<std::shared_ptr<Transport>> transports;
  ProcessId process;  // that all this runs in, where peers on its host can look for it
};

}  // namespace weft::rpc

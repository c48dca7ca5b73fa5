// World: the membership of this process in the job of a default group, and its agent.
#pragma once

#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/job/job.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>

namespace weft::python {

// The process groups of a process share it; the last of them leaves the job. Construct and destroy it without
// the GIL.
struct World {
  // Joins. store: of the program; it introduces the members to each other. A HashStore reaches no other
  // process: the members, which may also be C++ programs, meet as the environment states
  // (rpc/job/environment.h). If the last owner is a callback of a future, another thread leaves.
  static std::shared_ptr<World> join(c10d::Store& store, int rank, int size,
                                     std::chrono::milliseconds timeout);
  World(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);
  ~World();

  // Runs the callbacks of futures, which may take the GIL and run collectives.
  const std::shared_ptr<rpc::HandlerPool> callbacks;
  std::unique_ptr<rpc::Job> job;
};

}  // namespace weft::python

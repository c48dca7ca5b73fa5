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
  // Joins. store: of the program; it introduces the members to each other. If it is a HashStore, which
  // reaches no other process, and WEFT_STORE is set, the members meet there (rpc/job/environment.h), also
  // with C++ programs.
  World(c10d::Store& store, int rank, int size, std::chrono::milliseconds timeout);
  ~World();

  // Runs the callbacks of futures, which may take the GIL and run collectives.
  const std::shared_ptr<rpc::HandlerPool> callbacks;
  std::unique_ptr<rpc::Job> job;
};

}  // namespace weft::python

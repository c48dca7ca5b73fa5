// World: the membership of this process in the job of a default group, and its agent.
#pragma once

#include <weft/rpc/core/handler_pool.h>
#include <weft/rpc/job/job.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

namespace weft::python {

// The process groups of a process share it; the last of them leaves the job. Construct and destroy it without
// the GIL. job->join() joins.
struct World {
  // store: of the program; it introduces the members to each other. null: the members meet as the environment
  // states (rpc/job/environment.h), also with C++ programs.
  World(c10d::Store* store, int rank, int size);
  ~World();

  // Runs the callbacks of futures, which may take the GIL and run collectives.
  const std::shared_ptr<rpc::HandlerPool> callbacks = std::make_shared<rpc::HandlerPool>(1);
  std::unique_ptr<rpc::Job> job;
};

}  // namespace weft::python

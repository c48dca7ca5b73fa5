// Device: one device of this process, as the communicators on it share it.
//
// Made by whoever makes the first communicator there, and given to all: two of one device would each have an
// order of its own. A value of shared parts; thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/aborts.h>
#include <weft/parallel/collectives/nccl/api.h>
#include <weft/parallel/collectives/nccl/launch_order.h>
#include <weft/parallel/collectives/nccl/watch.h>

#include <functional>
#include <optional>
#include <string>

namespace weft::collectives::nccl {

struct Device {
  std::shared_ptr<const Api> api;
  std::shared_ptr<LaunchOrder> order = std::make_shared<LaunchOrder>();
  std::shared_ptr<Aborts> aborts = std::make_shared<Aborts>();
  std::shared_ptr<Watch> watch;
  // Runs what blocks: making a communicator, aborting one. It has a thread to spare.
  std::shared_ptr<rpc::Executor> background;
  // Runs a job with the device as the thread's current one; empty: it always is.
  std::function<void(const std::function<void()>&)> within;

  void run_within(const std::function<void()>& job) const { within ? within(job) : job(); }
  // The same on a thread that nothing may leave: why the job did not run, or did not end.
  std::optional<std::string> try_within(const std::function<void()>& job) const {
    try {
      run_within(job);
      return std::nullopt;
    } catch (const std::exception& error) {
      return error.what();
    }
  }
};

}  // namespace weft::collectives::nccl

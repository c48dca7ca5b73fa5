// Device: one device of this process, shared by the communicators on it.
//
// Created for the first communicator there, and given to all: two Devices for one device would have separate
// orders. A value of shared parts; thread-safe.
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
  // Runs blocking work: creating a communicator, aborting one. It must have a free thread.
  std::shared_ptr<rpc::Executor> background;
  // Runs a job with the device as the thread's current one; empty: it always is.
  std::function<void(const std::function<void()>&)> within;

  // Runs the job now, with this device as the thread's current one. Exceptions of the job are passed on.
  void run_within(const std::function<void()>& job) const { within ? within(job) : job(); }
  // The same on a thread that no exception may leave: returns why the job did not run, or did not complete.
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

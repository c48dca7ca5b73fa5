// Device: one device of this process, shared by the communicators on it.
//
// Create it for the first communicator on the device, and use it for all of them: two Devices for one device
// would have separate launch orders. A value, whose copies share all of its parts. Thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/internal/aborts.h>
#include <weft/parallel/collectives/nccl/internal/api.h>
#include <weft/parallel/collectives/nccl/internal/launch_order.h>
#include <weft/parallel/collectives/nccl/internal/watch.h>

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
  // Runs a job with the device as the thread's current device. Empty: the device is always the current
  // device.
  std::function<void(const std::function<void()>&)> within;

  // Runs the job now, with this device as the thread's current device. Throws the exceptions of the job.
  void run_within(const std::function<void()>& job) const { within ? within(job) : job(); }
  // As run_within(), without exceptions: returns the text of the exception, or nullopt if the job completed.
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

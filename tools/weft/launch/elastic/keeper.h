// Keeper: keeps the record of one worker in the job's store, for a driver that may die (takeover.h), and
// decides when the worker starts and ends.
//
// The keeper registers the worker before it starts, so there is never a worker that no driver knows. The
// keeper stops the worker if the driver orders the stop, if no driver has had the lease for `orphan_wait`, or
// if the keeper's own lease has ended. In the last case the driver considers the worker lost, and may have
// replaced it. While the store cannot be reached, the worker continues. Thread-safety: members and calls run
// on the loop.
//
// run_keeper() runs such a worker, in a process that outlives the driver that has started it.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/store/lease_keeper.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/weft/launch/elastic/store_watch.h"
#include "tools/weft/launch/elastic/takeover.h"
#include "tools/weft/launch/supervisor.h"

namespace weft::tool::launch::elastic {

class Keeper {
 public:
  struct Calls {
    std::function<void()> start;                       // starts the worker
    std::function<void(const std::string& why)> stop;  // stops the worker, which has started
    // The store has recorded the end of the worker, or has not answered for 10 s. This is the last call.
    std::function<void()> reported;
  };

  // Registers the worker "JOB/ID"; blocks until that is done. Throws UsageError if the worker has a keeper
  // already, rpc::Error if the store fails.
  Keeper(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::string worker,
         std::chrono::nanoseconds orphan_wait, Calls calls);
  ~Keeper();

  // The worker has ended, or could not start. If the keeper has stopped the worker, the record keeps the
  // reason for the stop.
  void ended(const Failure& end);
  int status() const { return record_.status; }  // the status of the worker, which has ended

 private:
  void changed(const rpc::StoreChanges& changes);
  void stop(const std::string& why);
  void await_driver();
  void reported();

  const std::shared_ptr<rpc::Loop> loop_;
  const std::shared_ptr<rpc::Store> store_;
  const std::string worker_;
  const std::chrono::nanoseconds orphan_wait_;
  const Calls calls_;
  std::optional<rpc::LeaseKeeper> lease_;
  std::optional<StoreWatch> watch_;
  rpc::Loop::TimerId timer_ = 0;  // the wait for a driver, or at the end for the store
  KeptWorker record_;
  bool started_ = false;
  // Callbacks that outlive this object check it.
  const std::shared_ptr<void> alive_ = std::make_shared<bool>();
};

struct KeeperOptions {
  std::string store;   // file:///path or etcd://host:port/prefix
  std::string worker;  // "JOB/ID"
  std::chrono::nanoseconds orphan_wait = std::chrono::minutes{1};
  std::vector<std::string> command;
  std::string grace;
  // A folder. Empty: the output is written to standard output, and is lost if standard output has no reader.
  std::string logs;
};

// From this call on, the process does not die with the driver. Call it before the process has children.
void outlive_the_driver();

// Returns the worker's exit status, or 128 plus the number of its signal. Throws UsageError, rpc::Error.
int run_keeper(const KeeperOptions& options);

}  // namespace weft::tool::launch::elastic

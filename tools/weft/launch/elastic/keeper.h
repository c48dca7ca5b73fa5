// Keeper: keeps the record of one worker in the job's store, for a driver that may die (takeover.h), and
// decides when the worker starts and ends.
//
// The worker is registered before it starts, so a worker that no driver knows is never left behind. The
// keeper stops it if the driver orders it, if for `orphan_wait` no driver has had the lease, and if the
// keeper's own lease has ended: the driver takes the worker for lost then, and another worker may have its
// place. While the store cannot be reached, the worker continues. Thread-safety: members and calls run on the
// loop.
//
// run_keeper() runs such a worker in a process that outlives the driver that has started it.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/store/lease_keeper.h>

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
    std::function<void()> start;                       // the worker
    std::function<void(const std::string& why)> stop;  // the worker, which has started
    // The last call: the store has the end of the worker, or has not answered for 10 s.
    std::function<void()> reported;
  };

  // Registers the worker "JOB/ID", and blocks until then. Throws UsageError if it has a keeper already,
  // rpc::Error.
  Keeper(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::string worker,
         std::chrono::nanoseconds orphan_wait, Calls calls);
  ~Keeper();

  // The worker has ended, or could not start. If it was stopped, the reason for that is kept.
  void ended(const Failure& end);
  int status() const { return record_.status; }  // of the worker that has ended

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
  rpc::Loop::TimerId timer_ = 0;  // for a driver; at the end for the store
  KeptWorker record_;
  bool started_ = false;
  const std::shared_ptr<void> alive_ = std::make_shared<bool>();  // for what outlives this object
};

struct KeeperOptions {
  std::string store;   // file:///path or etcd://host:port/prefix
  std::string worker;  // "JOB/ID"
  std::chrono::nanoseconds orphan_wait = std::chrono::minutes{1};
  std::vector<std::string> command;
  std::string grace;
  std::string logs;  // a folder; empty: the output goes to standard output, and is lost if nobody reads that
};

// Call before the process has children: from here on it does not die with the driver.
void outlive_the_driver();

// The worker's exit status, or 128 and its signal. Throws UsageError, rpc::Error.
int run_keeper(const KeeperOptions& options);

}  // namespace weft::tool::launch::elastic

// JobStore: the driver's access to the store through which the workers of an elastic job find each other.
//
// The driver's own agent keeps the store at tcp://host:port, or a file or etcd does. In each case the driver
// is not a member of the job. The driver reads from the store which workers have joined. It writes to the
// store which workers have died, because it knows this before the leases of the workers expire. Owned by the
// launcher. Thread-safety: members and their callbacks are called on the thread of the io_context.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/store/store.h>
#include <weft/rpc/security/credentials.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tools/weft/launch/elastic/store_watch.h"

namespace weft::tool::launch::elastic {

struct JobStoreOptions {
  // tcp://host:port (this process keeps the store at that address), file:///path, or etcd://host:port/prefix.
  std::string url;
  rpc::CredentialOptions credentials;
  bool insecure = false;
};

// Opens the store, or keeps it in this process. Throws UsageError, rpc::Error.
OpenedStore open_job_store(const JobStoreOptions& options);

class JobStore {
 public:
  // An incarnation of a worker has joined. Called again if another part of its record changes.
  using Joined = std::function<void(const std::string& name, std::uint64_t incarnation)>;
  // How the membership of a worker has ended.
  struct End {
    std::uint64_t incarnation = 0;  // 0: the worker has no record, or the store does not answer
    bool left = false;              // it has left with Job::leave()
  };

  JobStore(std::shared_ptr<rpc::Loop> loop, OpenedStore store, Joined joined);
  ~JobStore();

  // The process of the worker with this name has ended. If its record does not state an end, marks it as
  // lost. Calls `done` afterwards, or after 2 s if the store has not answered. driver: Takeover::owner(), if
  // another driver may take over: the record is then marked only if this driver still has its lease after it
  // has read the record. So a driver that was stopped marks no worker that its successor has started.
  void end(const std::string& name, std::function<void(const End& end)> done, const std::string& driver = {});
  const std::shared_ptr<rpc::Store>& store() const;
  void close();  // also closes the store; no callback follows

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace weft::tool::launch::elastic

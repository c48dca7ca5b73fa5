// JobStore: the store by which the workers of an elastic job find each other, as their driver uses it.
//
// The driver's own agent keeps the store at tcp://host:port, or a file or etcd does. In each case the driver
// is not a member of the job. It reads from the store which workers have joined, and writes there which
// workers have died: it knows that sooner than any lease tells. Owned by the launcher. Thread-safety: members
// are called by the thread of the io_context, and so are the functions that they are given.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/security/credentials.h>
#include <weft/rpc/store/store.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "tools/weft/launch/elastic/store_watch.h"

namespace weft::tool::launch::elastic {

struct JobStoreOptions {
  std::string url;  // tcp://host:port, where the store is kept here; file:///path; etcd://host:port/prefix
  rpc::CredentialOptions credentials;
  bool insecure = false;
};

// Keeps the store here, or opens it. Throws UsageError, rpc::Error.
OpenedStore open_job_store(const JobStoreOptions& options);

class JobStore {
 public:
  // An incarnation of a worker has joined. Called again if something else of its record changes.
  using Joined = std::function<void(const std::string& name, std::uint64_t incarnation)>;
  // How the membership of a worker has ended.
  struct End {
    std::uint64_t incarnation = 0;  // 0: it has no record, or the store does not answer
    bool left = false;              // it has left by itself, with Job::leave()
  };

  JobStore(std::shared_ptr<rpc::Loop> loop, OpenedStore store, Joined joined);
  ~JobStore();

  // The process of the worker with this name has ended: if its record says otherwise, it is marked as lost.
  // `done` is called once that is done, or could not be done within 2 s.
  void end(const std::string& name, std::function<void(const End& end)> done);
  const std::shared_ptr<rpc::Store>& store() const;
  void close();  // and the store; calls back no more

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace weft::tool::launch::elastic

// JobStore: the driver's access to the store through which the workers of an elastic job find each other.
//
// The driver's own agent keeps the store at tcp://host:port, or a file or etcd does. In each case the driver
// is not a member of the job. The driver reads from the store which workers have joined, which leases have
// ended, and which workers the others have excluded. It writes to the store which workers have died, because
// it knows this before the leases of the workers expire. Owned by the launcher. Thread-safety: members and
// their callbacks are called on the thread of the io_context.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/membership/roster.h>
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
  // The value of membership_keys::excluded: the other workers continue without this incarnation.
  struct Exclusion {
    std::uint64_t incarnation = 0;
    std::string why;  // one line, printable
  };
  // How the membership of a worker has ended.
  struct End {
    std::uint64_t incarnation = 0;  // 0: the worker has no record, or the store does not answer
    bool left = false;              // it has left with Job::leave()
  };

  // changed: a record of a worker or an exclusion has changed.
  JobStore(std::shared_ptr<rpc::Loop> loop, OpenedStore store, std::function<void()> changed);
  ~JobStore();

  bool reported() const;  // the store has reported the records
  // The record of the worker with this name, as the store last reported it; null: it has none, because no
  // worker of this name has registered, or because its lease has ended. A malformed record changes nothing.
  const rpc::MemberRecord* record(const std::string& name) const;
  // The exclusion of an incarnation of this name; null: none. A malformed one changes nothing. The key
  // remains when the worker has ended, because a replacement has another incarnation. If this driver dies
  // before it has stopped the worker, the next driver finds the key.
  const Exclusion* exclusion(const std::string& name) const;
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

// Takeover: the data that the driver of an elastic job keeps in the job's store, so that another driver can
// continue the job with the running workers.
//
//   driver/orders/lease      the driver's id, under a lease that it renews. One driver has it at a time
//   driver/state             SavedJob, stored before the driver does what it has decided
//   driver/orders/JOB/ID     the order to end this worker
//   driver/workers/JOB/ID    KeptWorker, written by the worker's keeper (keeper.h). While the worker runs,
//   the
//                            record is under a lease that the keeper renews. When the worker has ended, the
//                            record states how it has ended, and has no lease
//
// JOB is SavedJob::id. A driver that no longer has the lease cannot change the state, because each change
// compares the state with the driver's last value. Owned by the launcher. Thread-safety: members and calls
// run on the loop.
#pragma once

#include <weft/rpc/core/loop.h>
#include <weft/rpc/job/store/store.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tools/weft/launch/elastic/driver.h"

namespace weft::tool::launch::elastic {

namespace takeover_keys {
inline constexpr std::string_view state = "driver/state", orders = "driver/orders/";
inline constexpr std::string_view lease = "driver/orders/lease";
std::string order(const std::string& worker);  // worker: "JOB/ID"
std::string worker(const std::string& worker);
}  // namespace takeover_keys

struct SavedJob {
  std::string id;
  std::chrono::nanoseconds at{0};  // the driver's time
  DriverState driver;
};
WEFT_CODEC(SavedJob, id, at, driver)
std::string to_text(const DriverState& state);

struct KeptWorker {
  bool ended = false;
  bool orphaned = false;  // the keeper has stopped the worker, because no driver took over
  std::int32_t status = 0;
  std::string how, last_error;
};
WEFT_CODEC(KeptWorker, ended, orphaned, status, how, last_error)
std::string to_text(const KeptWorker& worker);
KeptWorker kept_worker(const std::string& text);

// The length of the leases of the driver and of the keepers, if they wait for each other for `orphan_wait`.
std::chrono::nanoseconds takeover_lease(std::chrono::nanoseconds orphan_wait);

class Takeover {
 public:
  struct Calls {
    std::function<void()> waits;                                // another driver has the lease
    std::function<void(std::optional<SavedJob> job)> acquired;  // nullopt: no driver had the job before
    // This process must not drive the job any more.
    std::function<void(const std::string& why)> lost;
    // A worker's keeper has changed its record. nullopt: the keeper is lost.
    std::function<void(WorkerId worker, const std::optional<KeptWorker>& record)> changed;
  };
  using Workers = std::map<WorkerId, KeptWorker>;

  Takeover(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<rpc::Store> store, std::chrono::nanoseconds lease,
           Calls calls);
  ~Takeover();

  const std::string& owner() const;  // the value of the lease of this driver
  // Waits for the lease, for at most three times its length.
  void acquire();
  // The records of a job's keepers.
  void list(const std::string& job, std::function<void(Workers)> found);
  void watch(const std::string& job);  // reports the existing records, and then every change
  // Stores the job; retries until it has succeeded. `done` is not called if another driver has changed the
  // state.
  void save(const SavedJob& job, std::function<void()> done);
  void stop(WorkerId worker);
  // Removes the records of a worker that has ended and is not in the saved state.
  void forget(WorkerId worker);
  // The job has ended: removes its keys. Calls `done` when that is done, or after 5 s.
  void release(std::function<void()> done);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace weft::tool::launch::elastic

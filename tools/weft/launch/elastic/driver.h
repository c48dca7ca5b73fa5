// ElasticDriver: decides which workers of an elastic job run on which host. It is a pure state machine: it
// receives events and returns actions.
//
// The caller passes each event with the current time, executes the returned actions in order, and passes
// TimePassed at next_wake(). The driver has no I/O and reads no clock, and its jitter is derived from
// DriverOptions::seed. So equal events cause equal actions, and the tests run 100,000 simulated jobs.
//
// Terms: a *slot* is a place for one worker on a host. A worker *starts* when its process starts and is
// *ready* when it has joined the job. A worker that is not asked to stop and ends with another status than 0
// has *failed*. A host is *blacklisted* after several failures in a row: no worker starts there until its
// cooldown has ended; workers that run there continue. A worker is *displaced* if discovery no longer reports
// its slot. A *reset* is a change of the set of workers after the first start.
//
// A worker has also failed if it is not ready in time, if the other workers have excluded it, or if its
// membership of the job has ended without leave(). Its process may still run. The driver then stops it. Its
// slot and its rank are free when WorkerExited reports the end of the process, and not earlier: there are
// never more than max_workers workers, or two of one rank. The caller passes this event after a bounded time,
// also for a host that does not answer.
//
// Thread-safety: none.
#pragma once

#include <weft/rpc/codec/struct_codec.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tools/weft/launch/elastic/blacklist.h"

namespace weft::tool::launch::elastic {

using WorkerId = std::uint64_t;  // identifies one process: a replacement has a new id

struct HostSlots {
  std::string host;
  std::size_t slots = 1;
};
WEFT_CODEC(HostSlots, host, slots)

struct DriverOptions {
  std::size_t min_workers = 1, max_workers = 1;
  // If fewer than min_workers are ready for this time, the job fails. At first the time counts from the start
  // of the job.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
  // If a worker is not ready within this time after its start, it is stopped, and counts as failed. 0: a
  // worker is ready when its process has started.
  std::chrono::nanoseconds start_timeout = std::chrono::minutes{10};
  // The first worker that ends with status 0 ends the job with success. The other workers may run for this
  // time.
  std::chrono::nanoseconds finish_wait = std::chrono::minutes{1};
  BlacklistOptions blacklist;
  bool evict = false;                      // workers on a blacklisted host are displaced, as in Horovod
  std::optional<std::size_t> reset_limit;  // the number of resets after which a further one fails the job
  // Changes within this time of each other count as one reset, because the workers of a host that dies end
  // one by one.
  std::chrono::nanoseconds reset_settle = std::chrono::seconds{1};
  // How often the job may continue after its last ready worker has failed, which loses the state in memory.
  std::size_t restarts = 0;
  std::uint64_t seed = 0;
};

// --- Events ---

struct HostsFound {
  std::vector<HostSlots> hosts;  // each host once
};
struct DiscoveryFailed {
  std::string why;
};
struct WorkerReady {
  WorkerId worker = 0;
};
struct WorkerExited {
  WorkerId worker = 0;
  int status = 0;            // the status as a shell reports it; 0: success
  std::string how;           // for messages: "was killed by signal 9 (Killed)"
  std::string details = {};  // appended to the note about this exit only
  bool blameless = false;    // the failure says nothing about the host
};
// The other workers continue without this worker, because it makes no progress although its agent answers.
struct WorkerExcluded {
  WorkerId worker = 0;
  std::string why;
};
// The lease of this worker has ended, or the store reports its loss: its process is stopped, or its host does
// not answer.
struct WorkerLost {
  WorkerId worker = 0;
  std::string why;
};
// The user ends the job.
struct Interrupted {
  std::string why;
};
struct TimePassed {};
using Event = std::variant<HostsFound, DiscoveryFailed, WorkerReady, WorkerExited, WorkerExcluded, WorkerLost,
                           Interrupted, TimePassed>;

// --- Actions ---

struct StartWorker {
  WorkerId worker = 0;
  std::string host;
  std::size_t slot = 0;   // the slot's number on the host, from 0
  std::size_t slots = 1;  // the number of the host's slots
  std::size_t rank = 0;   // less than max_workers; the worker keeps it until it exits
};
// Stop the worker's process. The caller ensures that it ends, and passes WorkerExited.
struct StopWorker {
  WorkerId worker = 0;
  std::string why;
};
struct BlacklistHost {
  std::string host;
  std::optional<std::chrono::nanoseconds> until;  // nullopt: permanently
};
struct Note {
  std::string text;  // for the user
};
// The last action. No worker runs any more.
struct EndJob {
  bool success = false;
  std::string why;  // the reason of a failure
};
using Action = std::variant<StartWorker, StopWorker, BlacklistHost, Note, EndJob>;
using Actions = std::vector<Action>;

// --- State ---

enum class DriverPhase : std::uint8_t {
  waiting,    // waits for min_workers slots
  running,    // workers start, fail and are replaced
  finishing,  // a worker has succeeded, and no worker starts any more
  giving_up,  // the job has failed, and its workers end
  ended
};

struct DriverWorker {
  std::string host;
  std::size_t slot = 0, rank = 0;
  std::chrono::nanoseconds started{0};
  std::optional<std::chrono::nanoseconds> ready;
  bool stopping = false;
};
WEFT_CODEC(DriverWorker, host, slot, rank, started, ready, stopping)

// The whole state of a driver, without its options. It can be sent and stored (ElasticDriver::save()).
struct DriverState {
  DriverPhase phase = DriverPhase::waiting;
  std::string failure;
  std::vector<HostSlots> hosts;  // as discovered, the oldest first, so that ranks are stable
  bool discovered = false;       // discovery has succeeded at least once
  BlacklistState blacklist;
  std::map<WorkerId, DriverWorker> workers;  // workers that have not exited
  WorkerId last_id = 0;
  std::size_t resets = 0, restarts = 0;
  bool formed = false;  // min_workers were ready at some time, so there is a state to lose
  std::optional<std::chrono::nanoseconds> last_change;
  // The time since which fewer than min_workers are ready.
  std::optional<std::chrono::nanoseconds> short_since;
  std::chrono::nanoseconds finish_by{0};
};
WEFT_CODEC(DriverState, phase, failure, hosts, discovered, blacklist, workers, last_id, resets, restarts,
           formed, last_change, short_since, finish_by)

class ElasticDriver {
 public:
  using Time = std::chrono::nanoseconds;  // since an arbitrary fixed moment

  ElasticDriver(DriverOptions options, Time now);

  // The state that another driver needs to take over from this one. Store it before you execute the actions
  // that handle() has returned. Then a driver that dies at any time leaves a state that its successor can
  // use.
  DriverState save() const;
  // Takes over from another driver; call it before any event. now: not before the last event of the other
  // driver. The start timeout of workers that are not ready and the timeout for min_workers begin again.
  // Returns the stops that are due and the end of the job, because the other driver may not have executed
  // them. For workers that do not run any more the caller then passes WorkerExited.
  Actions restore(Time now, DriverState state);

  // Events of workers that have exited, a second failure of a worker, and all events after EndJob are
  // ignored.
  Actions handle(Time now, const Event& event);
  // The time at which to pass TimePassed, if no other event occurs before. nullopt: never.
  std::optional<Time> next_wake() const;

  bool ended() const { return state_.phase == DriverPhase::ended; }
  std::size_t workers() const { return state_.workers.size(); }  // workers that have not exited
  std::size_t ready() const;                                     // ready workers that were not asked to stop

 private:
  void take(const HostsFound& found);
  void take(const DiscoveryFailed& failed);
  void take(const WorkerReady& ready);
  void take(const WorkerExited& exited);
  void take(const WorkerExcluded& excluded);
  void take(const WorkerLost& lost);
  void take(const Interrupted& interrupted);
  void take(const TimePassed&) {}

  void stop_failed(WorkerId id, const std::string& how);
  void failed(const DriverWorker& worker, const std::string& how, const std::string& details, bool blameless);
  void strike(const DriverWorker& worker);
  void plan();
  void stop_late_starters();
  void stop_displaced();
  void start_workers();
  void count_reset();
  void watch_minimum();
  void finish();
  void give_up(std::string why);
  void stop(WorkerId id, DriverWorker& worker, std::string why);
  void end_if_empty();

  bool displaced(const DriverWorker& worker) const;
  bool available(const HostSlots& host) const;
  std::size_t capacity() const;  // the number of slots of available hosts
  bool all_blacklisted() const;
  std::size_t lowest_free_rank() const;
  std::string title(const DriverWorker& worker) const;
  std::string hosts_text() const;

  const DriverOptions options_;
  DriverState state_;                         // without the blacklist, which save() adds
  std::map<std::string, std::size_t> slots_;  // the slots of state_.hosts
  bool discovery_fails_ = false;
  Blacklist blacklist_;
  std::map<std::pair<std::string, std::size_t>, WorkerId> occupied_;
  std::set<std::size_t> ranks_;  // the ranks of state_.workers

  // The state of the event that is being handled.
  Time now_;
  bool changed_ = false;   // a worker has failed, starts or stops
  bool expected_ = false;  // a worker has exited that was stopped before
  Actions actions_;
};

}  // namespace weft::tool::launch::elastic

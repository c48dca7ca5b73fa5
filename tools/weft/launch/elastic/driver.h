// ElasticDriver: decides which workers of an elastic job run where. A pure state machine: events in, actions
// out.
//
// The caller passes each event with the present time, executes the returned actions in order, and passes
// TimePassed at next_wake(). The driver does no IO and reads no clock; its jitter follows from
// DriverOptions::seed. So equal events give equal actions, and the tests run it through 100,000 simulated
// jobs.
//
// Words. A *slot* is a place for one worker on a host. A worker *starts* when its process starts and is
// *ready* when it has joined the job. A worker that is not asked to stop and ends with another status than 0
// has *failed*. A host is *blacklisted* after several failures in a row: no worker starts there until its
// cooldown has ended; workers that run there continue. A worker is *displaced* if discovery no longer reports
// its slot. A *reset* is a change of the set of workers after the first start.
//
// Thread-safety: none.
#pragma once

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

using WorkerId = std::uint64_t;  // of one process: a worker that replaces another one has a new id

struct HostSlots {
  std::string host;
  std::size_t slots = 1;
};

struct DriverOptions {
  std::size_t min_workers = 1, max_workers = 1;
  // The job fails if fewer than min_workers are ready for so long, from the start of the job on.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
  // A worker that is not ready so long after its start is stopped, and counts as failed. 0: a worker is ready
  // when its process has started.
  std::chrono::nanoseconds start_timeout = std::chrono::minutes{10};
  // The first worker that ends with status 0 ends the job with success. The other workers may run for so
  // long.
  std::chrono::nanoseconds finish_wait = std::chrono::minutes{1};
  BlacklistOptions blacklist;
  bool evict = false;                      // workers on a blacklisted host are displaced, as in Horovod
  std::optional<std::size_t> reset_limit;  // the job fails at the next reset
  // Changes within this time of each other are one reset: a host that dies ends its workers one by one.
  std::chrono::nanoseconds reset_settle = std::chrono::seconds{1};
  // How often the job may go on although its last ready worker has failed: the state in memory is lost then.
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
  int status = 0;            // as a shell reports it; 0: success
  std::string how;           // for messages: "was killed by signal 9 (Killed)"
  std::string details = {};  // appended to the note about this exit only
};
struct TimePassed {};
using Event = std::variant<HostsFound, DiscoveryFailed, WorkerReady, WorkerExited, TimePassed>;

// --- Actions ---

struct StartWorker {
  WorkerId worker = 0;
  std::string host;
  std::size_t slot = 0;   // on the host, from 0
  std::size_t slots = 1;  // that the host has
  std::size_t rank = 0;   // less than max_workers; the worker keeps it until it exits
};
// The process ends sooner or later; the caller forces it to.
struct StopWorker {
  WorkerId worker = 0;
  std::string why;
};
struct BlacklistHost {
  std::string host;
  std::optional<std::chrono::nanoseconds> until;  // none: for good
};
struct Note {
  std::string text;  // for the user
};
// The last action. No worker runs any more.
struct EndJob {
  bool success = false;
  std::string why;  // of a failure
};
using Action = std::variant<StartWorker, StopWorker, BlacklistHost, Note, EndJob>;
using Actions = std::vector<Action>;

class ElasticDriver {
 public:
  using Time = std::chrono::nanoseconds;  // since any fixed moment

  ElasticDriver(DriverOptions options, Time now);

  // Events of workers that have exited, and all events after EndJob, are ignored.
  Actions handle(Time now, const Event& event);
  // When to pass TimePassed, if nothing else happens before; none: never.
  std::optional<Time> next_wake() const;

  bool ended() const { return phase_ == Phase::ended; }
  std::size_t workers() const { return workers_.size(); }  // that have not exited
  std::size_t ready() const;                               // that are not asked to stop either

 private:
  enum class Phase {
    waiting,    // for min_workers slots
    running,    // workers start, fail and are replaced
    finishing,  // a worker has succeeded: none starts any more
    giving_up,  // the job has failed, and its workers end
    ended
  };
  struct Worker {
    std::string host;
    std::size_t slot = 0, rank = 0;
    Time started{0};
    std::optional<Time> ready;
    bool stopping = false;
  };
  using Workers = std::map<WorkerId, Worker>;

  void take(const HostsFound& found);
  void take(const DiscoveryFailed& failed);
  void take(const WorkerReady& ready);
  void take(const WorkerExited& exited);
  void take(const TimePassed&) {}

  void failed(const Worker& worker, const WorkerExited& exited);
  void strike(const Worker& worker);
  void plan();
  void stop_late_starters();
  void stop_displaced();
  void start_workers();
  void count_reset(bool was_stopping);
  void watch_minimum();
  void finish();
  void give_up(std::string why);
  void stop(WorkerId id, Worker& worker, std::string why);
  void end_if_empty();

  bool displaced(const Worker& worker) const;
  bool available(const HostSlots& host) const;
  std::size_t capacity() const;  // slots of available hosts
  bool any_stopping() const;
  bool all_blacklisted() const;
  std::size_t lowest_free_rank() const;
  std::string title(const Worker& worker) const;
  std::string hosts_text() const;

  const DriverOptions options_;
  Phase phase_ = Phase::waiting;
  std::string failure_;
  std::vector<HostSlots> hosts_;  // as discovered; the order is that of their age, so that ranks are stable
  std::map<std::string, std::size_t> slots_;  // of the same hosts
  bool discovered_ = false;                   // at least once
  bool discovery_fails_ = false;
  Blacklist blacklist_;
  Workers workers_;  // that have not exited
  std::map<std::pair<std::string, std::size_t>, WorkerId> occupied_;
  std::set<std::size_t> ranks_;  // of workers_
  WorkerId last_id_ = 0;
  std::size_t resets_ = 0, restarts_ = 0;
  bool formed_ = false;  // min_workers were ready at one time: there is a state to lose
  std::optional<Time> last_change_;
  std::optional<Time> short_since_;  // since when fewer than min_workers are ready
  Time finish_by_{0};

  // Of the event that is handled.
  Time now_;
  bool changed_ = false;  // a worker has failed, starts or stops
  Actions actions_;
};

}  // namespace weft::tool::launch::elastic

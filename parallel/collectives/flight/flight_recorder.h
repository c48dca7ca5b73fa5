// FlightRecorder: records the last operations of one group on one rank, to diagnose one that does not
// complete.
//
// A ring of the last `most` operations, and in addition older ones that have not completed: a hanging
// operation is never dropped. An operation's signature is kept as bytes and becomes text only when it is
// read, so recording takes less than 100 ns and, once the ring's buffers have grown, no memory. Owned by its
// group. Thread-safe.
#pragma once

#include <weft/parallel/collectives/flight/flight_clock.h>
#include <weft/parallel/collectives/flight/flight_entry.h>
#include <weft/parallel/collectives/flight/spin_lock.h>

#include <map>
#include <memory>
#include <source_location>
#include <string_view>
#include <vector>

namespace weft::collectives {

// An operation that is about to start.
struct FlightOperation {
  using Render = std::string (*)(std::string_view meaning);  // called by records(), not when it is recorded

  // See FlightEntry for the fields of the same names.
  FlightKind kind = FlightKind::collective;
  std::uint64_t sequence = 0;  // of a collective, of a round of values
  std::string_view meaning;    // copied
  Render render = nullptr;     // makes its text; null: it is text
  std::source_location site{};
  std::uint64_t bytes = 0;
  int peer = -1;  // for a message; -1: any
  std::uint64_t tag = 0;
  FlightClock::Ticks begun = 0;  // 0: now
};

// A snapshot of a recorder.
struct FlightRecords {
  std::int64_t taken = 0;            // the time of the snapshot
  std::uint64_t begun = 0;           // collectives: those below this number have started
  std::uint64_t begun_values = 0;    // rounds of values, likewise
  std::uint64_t dropped = 0;         // operations that completed and are no longer here
  std::vector<FlightEntry> entries;  // in the order of their start
};

class WEFT_EXPORT FlightRecorder {
 public:
  using Ticket = std::uint64_t;  // of an operation; one that has been dropped since is ignored

  explicit FlightRecorder(std::size_t most = 1024);  // rounded up to a power of two

  // Records the start of an operation. The functions below record its progress, with the current time; once
  // it has completed or failed, they have no effect.
  Ticket begin(const FlightOperation& operation);
  void moving(Ticket ticket);  // all have arrived
  void done(Ticket ticket);
  void received(Ticket ticket, int from);  // completed, for a receive: from that rank
  void failed(Ticket ticket, std::string_view error);
  // Data that is read only after an error.
  void waits_for(Ticket ticket, std::vector<int> ranks);

  // Records an operation that has already completed; for operations that take no time in which a snapshot
  // could be taken.
  void note(const FlightOperation& operation);

  // A snapshot. It creates the operations' texts, without delaying threads that record meanwhile.
  FlightRecords records() const;

 private:
  static constexpr Ticket none = ~Ticket{0};
  struct Trouble {  // present only for few operations
    std::string error;
    std::vector<int> waits_for;
  };
  struct Slot {
    Ticket ticket = none;
    FlightState state = FlightState::done;
    FlightOperation operation;  // without its signature:
    std::string meaning;
    FlightClock::Ticks moved = 0, ended = 0;
    std::unique_ptr<Trouble> trouble;
  };
  static FlightEntry entry_of(const Slot& slot, const FlightClock::Scale& scale);
  Slot& add(const FlightOperation& operation, FlightClock::Ticks now);
  Slot* find(Ticket ticket);
  Slot* find_open(Ticket ticket);
  void keep(Slot& slot);

  const FlightClock clock_;
  mutable SpinLock lock_;  // guards what follows
  std::vector<Slot> ring_;
  std::map<Ticket, Slot> kept_;  // that had not completed when their places were needed
  Ticket next_ = 0;
  std::uint64_t begun_ = 0, begun_values_ = 0;
};

}  // namespace weft::collectives

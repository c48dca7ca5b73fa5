// FlightRecorder: records the last operations of one group on one rank, to diagnose operations that do not
// complete.
//
// It keeps the last `most` operations in a ring, and in addition the older operations that have not
// completed: a hanging operation is never dropped. It stores an operation's signature as bytes, and converts
// it to text only in records(), so recording takes less than 100 ns and, once the ring's buffers have grown,
// allocates no memory. Owned by its group. Thread-safe.
#pragma once

#include <weft/parallel/collectives/flight/flight_clock.h>
#include <weft/parallel/collectives/flight/flight_entry.h>
#include <weft/parallel/collectives/flight/spin_lock.h>
#include <weft/rpc/core/site.h>

#include <map>
#include <memory>
#include <string_view>
#include <vector>

namespace weft::collectives {

// An operation that is about to start.
struct FlightOperation {
  using Render = std::string (*)(std::string_view meaning);  // called by records(), not when it is recorded

  // See FlightEntry for the fields of the same names.
  FlightKind kind = FlightKind::collective;
  std::uint64_t sequence = 0;  // of a collective or a round of values
  std::string_view meaning;    // begin() copies it
  Render render = nullptr;     // converts `meaning` to text; null: `meaning` is text
  rpc::Site site{};
  std::uint64_t bytes = 0;
  int peer = -1;  // for a message; -1: any
  std::uint64_t tag = 0;
  FlightClock::Ticks begun = 0;  // 0: now
  FlightClock::Ticks moved = 0;  // note() only; 0: unknown
};

// A snapshot of a recorder.
struct FlightRecords {
  std::int64_t taken = 0;            // the time of the snapshot
  std::uint64_t begun = 0;           // collectives with smaller numbers have started
  std::uint64_t begun_values = 0;    // rounds of values with smaller numbers have started
  std::uint64_t dropped = 0;         // the number of completed operations that are no longer kept
  std::vector<FlightEntry> entries;  // in the order of their start
};

class WEFT_EXPORT FlightRecorder {
 public:
  using Ticket = std::uint64_t;  // identifies an operation; calls for a dropped operation have no effect

  explicit FlightRecorder(std::size_t most = 1024);  // rounded up to a power of two

  // Records the start of an operation. The functions below record its progress with the current time. Once
  // the operation has completed or failed, they have no effect.
  Ticket begin(const FlightOperation& operation);
  void moving(Ticket ticket, FlightClock::Ticks since);  // all ranks had arrived at that time
  void done(Ticket ticket);
  void received(Ticket ticket, int from);  // done() for a receive: the message came from that rank
  void failed(Ticket ticket, std::string_view error);
  // Sets the ranks whose data has not arrived. Call it before a dump, or when the operation fails.
  void waits_for(Ticket ticket, std::vector<int> ranks);

  // Records an operation that has already completed. For operations that are too short to be seen in flight.
  void note(const FlightOperation& operation);

  // Returns a snapshot. It creates the operations' texts outside of the lock, so it does not delay recording.
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
    FlightOperation operation;  // except its `meaning`, which the next member has
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
  mutable SpinLock lock_;  // guards the members below
  std::vector<Slot> ring_;
  std::map<Ticket, Slot> kept_;  // operations in flight whose place in the ring was needed
  Ticket next_ = 0;
  std::uint64_t begun_ = 0, begun_values_ = 0;
};

}  // namespace weft::collectives

// FlightRecorder: the last operations of one group on one rank, for when one of them does not end.
//
// A ring of the last `most`, and beside it older ones that are not done: what hangs is never dropped. What an
// operation means is kept as bytes and becomes text only when somebody asks, so that to note one takes
// less than 100 ns and, once the ring's buffers have grown, no memory. Owned by its group. Thread-safe.
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

// What is about to be done.
struct FlightOperation {
  using Render = std::string (*)(std::string_view meaning);

  FlightKind kind = FlightKind::collective;
  std::uint64_t sequence = 0;  // of a collective, of a round of values
  std::string_view meaning;    // copied
  Render render = nullptr;     // its text; null: it is one
  std::source_location site{};
  std::uint64_t bytes = 0;
  int peer = -1;  // of a message; -1: any
  std::uint64_t tag = 0;
  FlightClock::Ticks begun = 0;  // 0: now
};

struct FlightRecords {
  std::int64_t taken = 0;            // when
  std::uint64_t begun = 0;           // collectives: those below have been begun
  std::uint64_t begun_values = 0;    // rounds of values, likewise
  std::uint64_t dropped = 0;         // operations that were done and are no longer here
  std::vector<FlightEntry> entries;  // in the order of their beginning
};

class WEFT_EXPORT FlightRecorder {
 public:
  using Ticket = std::uint64_t;  // of an operation; one that has been dropped since is ignored

  explicit FlightRecorder(std::size_t most = 1024);  // rounded up to a power of two

  Ticket begin(const FlightOperation& operation);
  void moving(Ticket ticket);  // all have come
  void done(Ticket ticket);
  void received(Ticket ticket, int from);  // done, of a receive: from whom
  void failed(Ticket ticket, std::string_view error);
  // What is looked at only when something is wrong.
  void waits_for(Ticket ticket, std::vector<int> ranks);

  // One that is done already; for what takes no time in which anybody could ask.
  void note(const FlightOperation& operation);

  FlightRecords records() const;

 private:
  static constexpr Ticket none = ~Ticket{0};
  struct Trouble {  // what few have
    std::string error;
    std::vector<int> waits_for;
  };
  struct Slot {
    Ticket ticket = none;
    FlightState state = FlightState::done;
    FlightOperation operation;  // but for its meaning:
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
  std::map<Ticket, Slot> kept_;  // that were not done when their places were needed
  Ticket next_ = 0;
  std::uint64_t begun_ = 0, begun_values_ = 0;
};

}  // namespace weft::collectives

// SimTrace: records the events of a simulation, in order. It stores the last events as text, and a hash of
// all events.
//
// Owned by its SimWorld. Two runs of one seed have equal hashes, otherwise the simulation is not
// deterministic. An event's `what` must be a literal, and `who` must live as long as the trace; a test stores
// its own texts with note(). Thread-safety: none.
#pragma once

#include <weft/rpc/core/loop.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace weft::test {

class WEFT_EXPORT SimTrace {
 public:
  // keep: the number of events that are stored. live: also prints each event to stderr.
  explicit SimTrace(std::size_t keep, bool live = false) : keep_(keep), live_(live) {}

  // at: the virtual time. a, b: numbers of the event, printed if they are not 0.
  void add(rpc::Clock::time_point at, const char* what, std::string_view who = {}, std::uint64_t a = 0,
           std::uint64_t b = 0);
  // An event of the test, with its own text.
  void note(rpc::Clock::time_point at, std::string text);

  std::uint64_t hash() const { return hash_; }  // the hash of all events since the beginning
  std::uint64_t size() const { return size_; }  // the number of these events
  std::string tail() const;                     // the stored events, one per line

 private:
  struct Event {
    rpc::Clock::time_point at;
    const char* what;
    std::string_view who;
    std::uint64_t a, b;
    std::string note;
  };
  static std::string line(const Event& event);
  void keep(Event event);
  void mix(std::uint64_t word) { hash_ = (hash_ ^ word) * 0x100000001b3; }
  void mix(std::string_view text);

  const std::size_t keep_;
  const bool live_;
  std::deque<Event> events_;
  std::uint64_t hash_ = 0xcbf29ce484222325;
  std::uint64_t size_ = 0;
};

}  // namespace weft::test

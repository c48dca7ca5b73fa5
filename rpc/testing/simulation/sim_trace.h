// SimTrace: what happened in a simulation, in order: the last events to be read, all of them as one number.
//
// Owned by its SimWorld. Two runs of one seed have equal hashes, or the simulation is not deterministic. An
// event's `what` is a literal, and `who` lives as long as the trace; texts of the test are kept as notes.
// Thread-safety: none.
#pragma once

#include <weft/rpc/core/loop.h>

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>

namespace weft::test {

class WEFT_EXPORT SimTrace {
 public:
  // Keeps that many events. live: prints each to stderr as it comes, too.
  explicit SimTrace(std::size_t keep, bool live = false) : keep_(keep), live_(live) {}

  void add(rpc::Clock::time_point at, const char* what, std::string_view who = {}, std::uint64_t a = 0,
           std::uint64_t b = 0);
  void note(rpc::Clock::time_point at, std::string text);

  std::uint64_t hash() const { return hash_; }  // of all events since the beginning
  std::uint64_t size() const { return size_; }
  std::string tail() const;  // the events that are kept, one a line

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

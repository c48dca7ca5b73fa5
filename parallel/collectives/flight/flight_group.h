// FlightGroup: what the dumps of one group's ranks say together.
//
// Of collectives of one sequence it knows who means the same, and of every rank what it has not done. Points
// into the dumps, which outlive it. Thread-safety: a value.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>

#include <functional>
#include <map>
#include <optional>
#include <set>

namespace weft::collectives {

using FlightEntries = std::vector<const FlightEntry*>;

// What all ranks come to, as one number: a collective's, or a round's of values behind those of all
// collectives.
using FlightOrdinal = std::uint64_t;
constexpr FlightOrdinal first_round = FlightOrdinal{1} << 63;
inline FlightOrdinal ordinal_of(const FlightEntry& entry) {
  return entry.kind == FlightKind::values ? first_round + entry.sequence : entry.sequence;
}

struct WEFT_EXPORT FlightGroup {
  std::string label;  // its name; "NAME@MEMBER0.NUMBER" where several have that name
  std::vector<std::string> members;
  std::vector<const FlightDump*> dumps;                                 // by rank; null: none
  std::vector<std::map<FlightOrdinal, const FlightEntry*>> by_ordinal;  // by rank
  std::set<FlightOrdinal> mismatches;  // at which ranks mean different things
  std::vector<FlightEntries> open;  // by rank: not done, and no mismatches; meetings in order, then messages

  int size() const { return static_cast<int>(members.size()); }
  const FlightDump* dump(int rank) const { return dumps[static_cast<std::size_t>(rank)]; }
  const FlightEntry* entry(int rank, FlightOrdinal ordinal) const;  // null: not in its dump
  bool has_begun(int rank, FlightOrdinal ordinal) const;            // false where there is no dump
  std::vector<int> without_dump() const;
  std::vector<int> with_dump() const;

  std::string describe(int rank) const;                       // "rank 2 (worker2)"
  std::string describe(const std::vector<int>& ranks) const;  // "ranks 0, 1, 4-7"; of one as above
};

// Two dumps of one rank: the later counts. Of groups of the same name and members in which rank 0 was another
// process, the last counts; `notes` says what was left out.
WEFT_EXPORT std::vector<FlightGroup> flight_groups(const std::vector<FlightDump>& dumps,
                                                   std::vector<std::string>& notes);

// How what one rank comes to stands to another's from there on, where they are not the same there.
enum class FlightShift : std::uint8_t {
  none,      // not as below
  left_out,  // as if it had left out the other's one there
  one_more,  // as if its own there were one more
  swapped    // as if it had done that and the next in the other order
};
using SameFlight = std::function<bool(const FlightEntry&, const FlightEntry&)>;
WEFT_EXPORT FlightShift flight_shift(const FlightGroup& group, int rank, int other, std::uint64_t sequence,
                                     const SameFlight& same);

}  // namespace weft::collectives

// FlightGroup: the combined information of the dumps of one group's ranks.
//
// For collectives of one sequence it knows which ranks have the same signature, and for every rank what it
// has not completed. Points into the dumps, which outlive it. Thread-safety: a value.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>

#include <functional>
#include <map>
#include <optional>
#include <set>

namespace weft::collectives {

// Entries of dumps, not owned.
using FlightEntries = std::vector<const FlightEntry*>;

// A meeting of all ranks, as one number: that of a collective, or that of a round of values after those of
// all collectives.
using FlightOrdinal = std::uint64_t;
// The ordinals of rounds of values begin here.
constexpr FlightOrdinal first_round = FlightOrdinal{1} << 63;
// Of an entry that is no message.
inline FlightOrdinal ordinal_of(const FlightEntry& entry) {
  return entry.kind == FlightKind::values ? first_round + entry.sequence : entry.sequence;
}

struct WEFT_EXPORT FlightGroup {
  std::string label;  // its name; "NAME@MEMBER0.NUMBER" if several groups have that name
  std::vector<std::string> members;
  std::vector<const FlightDump*> dumps;                                 // by rank; null: none
  std::vector<std::map<FlightOrdinal, const FlightEntry*>> by_ordinal;  // by rank
  std::set<FlightOrdinal> mismatches;  // at which ranks have different signatures
  std::vector<FlightEntries>
      open;  // by rank: not completed, and no mismatches; meetings in order, then messages

  // The number of ranks, and the dump of one; null: that rank has none.
  int size() const { return static_cast<int>(members.size()); }
  const FlightDump* dump(int rank) const { return dumps[static_cast<std::size_t>(rank)]; }

  const FlightEntry* entry(int rank, FlightOrdinal ordinal) const;  // null: not in its dump
  bool has_begun(int rank, FlightOrdinal ordinal) const;            // false without a dump
  // The ranks without a dump, and those with one, in ascending order.
  std::vector<int> without_dump() const;
  std::vector<int> with_dump() const;

  std::string describe(int rank) const;                       // "rank 2 (worker2)"
  std::string describe(const std::vector<int>& ranks) const;  // "ranks 0, 1, 4-7"; one rank as above
};

// If a rank has two dumps, the later one counts. Among groups of the same name and members in which rank 0
// was another process, the last counts; `notes` lists the ignored ones.
WEFT_EXPORT std::vector<FlightGroup> flight_groups(const std::vector<FlightDump>& dumps,
                                                   std::vector<std::string>& notes);

// The relation of one rank's operations to another's from a place on where they differ.
enum class FlightShift : std::uint8_t {
  none,      // none of those below
  left_out,  // as if it had left out the other's operation there
  one_more,  // as if its own operation there were an additional one
  swapped    // as if it had done that and the next in the other order
};
// Whether two entries, of different ranks, are of the same operation.
using SameFlight = std::function<bool(const FlightEntry&, const FlightEntry&)>;
// sequence: the ordinal at which rank and other differ first. same: compares entries of later ordinals, too.
WEFT_EXPORT FlightShift flight_shift(const FlightGroup& group, int rank, int other, std::uint64_t sequence,
                                     const SameFlight& same);

}  // namespace weft::collectives

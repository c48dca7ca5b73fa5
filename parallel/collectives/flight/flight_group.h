// FlightGroup: the combined information of the dumps of one group's ranks.
//
// A FlightGroup has the collectives of each rank by their number, the numbers at which signatures differ, and
// the operations that each rank has not completed. It points into the dumps, which must outlive it.
// Thread-safety: a value.
#pragma once

#include <weft/parallel/collectives/flight/flight_dump.h>

#include <functional>
#include <map>
#include <optional>
#include <set>

namespace weft::collectives {

// Entries of dumps, not owned.
using FlightEntries = std::vector<const FlightEntry*>;

// The number of an operation that all ranks call: a collective or a round of values. Rounds of values have
// larger ordinals than all collectives.
using FlightOrdinal = std::uint64_t;
// The ordinals of rounds of values begin here.
constexpr FlightOrdinal first_round = FlightOrdinal{1} << 63;
// The ordinal of an entry that is not a message.
inline FlightOrdinal ordinal_of(const FlightEntry& entry) {
  return entry.kind == FlightKind::values ? first_round + entry.sequence : entry.sequence;
}

struct WEFT_EXPORT FlightGroup {
  std::string label;  // its name; "NAME@MEMBER0.NUMBER" if several groups have that name
  std::vector<std::string> members;
  std::vector<const FlightDump*> dumps;                                 // by rank; null: the rank has none
  std::vector<std::map<FlightOrdinal, const FlightEntry*>> by_ordinal;  // by rank
  std::set<FlightOrdinal> mismatches;  // ordinals at which the ranks' signatures differ
  // By rank: the operations that have not completed, except mismatches. Collectives and rounds of values come
  // first, by ordinal, and then the messages.
  std::vector<FlightEntries> open;

  // size(): the number of ranks. dump(): the dump of a rank; null if the rank has no dump.
  int size() const { return static_cast<int>(members.size()); }
  const FlightDump* dump(int rank) const { return dumps[static_cast<std::size_t>(rank)]; }

  const FlightEntry* entry(int rank, FlightOrdinal ordinal) const;  // null: not in the rank's dump
  bool has_begun(int rank, FlightOrdinal ordinal) const;            // false if the rank has no dump
  // The ranks without a dump, and the ranks with a dump, in ascending order.
  std::vector<int> without_dump() const;
  std::vector<int> with_dump() const;

  std::string describe(int rank) const;                       // "rank 2 (worker2)"
  std::string describe(const std::vector<int>& ranks) const;  // "ranks 0, 1, 4-7"; one rank as above
};

// Combines dumps by group. If a rank has two dumps, the later one is used. If several groups have the same
// name and members but different processes as rank 0, the latest of them is used; `notes` lists the ignored
// groups.
WEFT_EXPORT std::vector<FlightGroup> flight_groups(const std::vector<FlightDump>& dumps,
                                                   std::vector<std::string>& notes);

// A likely reason why the operations of two ranks differ from some operation on.
enum class FlightShift : std::uint8_t {
  none,      // none of the reasons below
  left_out,  // the rank has left out the other rank's operation
  one_more,  // the rank's operation is an additional one
  swapped    // the rank has called this operation and the next one in the reverse order
};
// Whether two entries of different ranks are the same operation.
using SameFlight = std::function<bool(const FlightEntry&, const FlightEntry&)>;
// sequence: the first ordinal at which `rank` and `other` differ. same: also called for entries with larger
// ordinals.
WEFT_EXPORT FlightShift flight_shift(const FlightGroup& group, int rank, int other, std::uint64_t sequence,
                                     const SameFlight& same);

}  // namespace weft::collectives

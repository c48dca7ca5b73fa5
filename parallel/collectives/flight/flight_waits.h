// FlightWaits: the waits between members, across the groups of a job, and their cycles.
//
// A collective waits for the ranks that have not called it. A send waits for a rank that has not called
// receive, and a receive waits for a rank that has not called send. A rank without a dump counts as not
// arrived. A receive from any rank waits for no particular rank. Members of different groups are the same if
// their names are equal. The waits point into the groups, which must outlive them. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/flight/flight_group.h>

namespace weft::collectives {

// One operation of one rank that has not completed.
struct FlightWait {
  const FlightGroup* group = nullptr;
  int rank = 0;
  const FlightEntry* entry = nullptr;
  std::vector<int> awaited;              // ranks that have not arrived
  const FlightEntry* partner = nullptr;  // for a message: its other half, which has not completed either
  int partner_rank = -1;                 // of the other half; -1: no partner
};
// The waits of all groups, group by group. In a group, the collectives and the rounds of values
// (FlightKind::values) come first, by rank, and then the messages, by rank. Collectives on which ranks differ
// are left out.
WEFT_EXPORT std::vector<FlightWait> flight_waits(const std::vector<FlightGroup>& groups);

// One wait of a cycle.
struct FlightLink {
  const FlightWait* wait = nullptr;
  int awaited = 0;  // the rank in wait->awaited whose wait is the next link
};
using FlightCycle = std::vector<FlightLink>;  // each link waits for the next one, and the last for the first
// Returns the cycles. No member is in two of them; a long cycle is reported only if none of its members is in
// a shorter one.
WEFT_EXPORT std::vector<FlightCycle> flight_cycles(const std::vector<FlightWait>& waits);

}  // namespace weft::collectives

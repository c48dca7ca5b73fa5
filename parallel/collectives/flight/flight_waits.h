// FlightWaits: who waits for whom, across the groups of a job, and in which cycles.
//
// An operation waits for those that have not begun theirs: a collective for ranks that are not at it, a send
// for one that does not receive, a receive for one that has not sent. A rank without a dump has not come. A
// receive from any waits for nobody by name. The members of groups are one where their names are. Points into
// the groups. Thread-safety: values.
#pragma once

#include <weft/parallel/collectives/flight/flight_group.h>

namespace weft::collectives {

struct FlightWait {
  const FlightGroup* group = nullptr;
  int rank = 0;
  const FlightEntry* entry = nullptr;
  std::vector<int> awaited;              // ranks that have not come
  const FlightEntry* partner = nullptr;  // of a message: its other half, which is not done either
  int partner_rank = -1;
};
WEFT_EXPORT std::vector<FlightWait> flight_waits(const std::vector<FlightGroup>& groups);

struct FlightLink {
  const FlightWait* wait = nullptr;
  int awaited = 0;  // one of those that it waits for: it is the next link's rank, by name
};
using FlightCycle = std::vector<FlightLink>;  // the last waits for the first
// No member is in two of them; a long one is told only where none of its members is in a shorter one.
WEFT_EXPORT std::vector<FlightCycle> flight_cycles(const std::vector<FlightWait>& waits);

}  // namespace weft::collectives

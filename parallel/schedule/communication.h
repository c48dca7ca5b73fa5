// Messages as actions: place_communication and place_waits. Pure functions.
#pragma once

#include <weft/parallel/schedule/schedule.h>

namespace weft::schedule {

// Adds a send and a receive for each value that follows an edge to another rank, skip connections included.
//
// A send follows the computation that makes its value. The receive follows the actions that the receiver has
// started by that time, so that the transfer overlaps with computation. The times are estimated: all
// computations take equally long, except that a whole backward takes twice as long. All lists follow one
// order of all messages, so the schedule passes prove_message_order(). invalid_argument: the schedule has
// messages, or is invalid (validate.h).
WEFT_EXPORT Schedule place_communication(const Schedule& computations);

// Adds a wait for each send of a schedule with messages. A rank has at most `outstanding` sends for which it
// has not waited: it waits for the oldest before the next send, and for the rest at its end. The buffer of a
// sent value is free after the wait. invalid_argument: outstanding is below 1, or the schedule already has
// waits.
WEFT_EXPORT Schedule place_waits(const Schedule& schedule, int outstanding = 2);

}  // namespace weft::schedule

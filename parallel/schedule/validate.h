// validate and prove_message_order: checks before a schedule runs.
//
// Both throw rpc::Error with invalid_argument. The error names the rank, the action and the expectation.
// Positions are counted from 0 in the rank's list. The functions are pure.
#pragma once

#include <weft/parallel/schedule/schedule.h>

namespace weft::schedule {

// Checks that
//  - each micro-batch is computed once on each stage, by the rank that the placement names: forward, and
//    backward (whole, or input before weight gradient) unless the schedule has no backward at all;
//  - if there are messages, each value that changes its rank is sent once, after it is made, and received
//    once, before it is used; no other value is sent;
//  - versions of weights are stashed before they are loaded and follow each other by 1 from 0;
//  - a computation uses the version that it names, and that of the forward of its micro-batch;
//  - a stage that is unsharded somewhere is unsharded whenever it computes;
//  - all replicas of a stage start the same number of reductions;
//  - the schedule completes, if sends do not block, each computation waits for its inputs, and each wait
//    action waits for its message.
WEFT_EXPORT void validate(const Schedule& schedule);

// Checks that the schedule also completes if sends and receives block until both ranks have reached the
// message. A schedule that passes has one order of all messages, which the lists of all ranks follow: any two
// ranks have their messages, in both directions, in the same order. NCCL needs this, because it has one queue
// for the messages between two ranks. Calls validate() first.
WEFT_EXPORT void prove_message_order(const Schedule& schedule);

}  // namespace weft::schedule

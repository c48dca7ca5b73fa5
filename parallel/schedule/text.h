// The text form of a schedule: a superset of the CSV files of torch.distributed.pipelining.
//
//   file    = one line a rank, ascending; lines that start with # are comments
//   line    = cells between commas; an empty cell is idle
//   cell    = STAGE NAME [MICROBATCH] [":" STAGE] ["@" VERSION]  |  "(" cell ";" cell ... ")OVERLAP_F_B"
//   NAME    = F I W B SEND_F RECV_F SEND_B RECV_B WAIT_SEND_F WAIT_SEND_B REDUCE_GRAD WAIT_REDUCE_GRAD
//             UNSHARD RESHARD; added by weft: RECOMPUTE STASH LOAD STEP
//
// ":" precedes the stage at the other end of a message's edge, unless this is the neighbouring stage. "@"
// precedes the version of the weights. Examples: 0F3, 7B3, (0F4;7B3)OVERLAP_F_B, 1SEND_F3, 1SEND_F3:5,
// 2STASH@4, 2F7@4.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <string>
#include <string_view>

namespace weft::schedule {

// The text of the schedule; load() reads it.
WEFT_EXPORT std::string save(const Schedule& schedule);

// The text has the actions. load() derives the rest from them: a stage is placed on the ranks that compute
// it, replicas in the order of their first micro-batches; the edges are those of the messages, or a chain if
// there are no messages. source: the name of the text in errors. invalid_argument, with line and column from
// 1: the text is malformed.
WEFT_EXPORT Schedule load(std::string_view text, std::string_view source = "schedule");

}  // namespace weft::schedule

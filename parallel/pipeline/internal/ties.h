// Ties: the messages with which the ranks add the gradients of tied parameters, at the end of a step.
//
// For each tie, a rank that has some of the tied parameters sends the sum of their gradients to each other
// rank that has some of them. The home of a rank in a tie is the rank's first stage that has one of the
// parameters; messages of a tie are addressed from home to home. All ranks add the sums in the order of the
// homes, so that the results are bitwise equal. Pure functions.
#pragma once

#include <weft/parallel/pipeline/internal/value_exchange.h>

#include <cstddef>
#include <vector>

namespace weft::pipeline {

std::vector<int> homes_of(const Tie& tie, const schedule::Schedule& schedule);  // ascending
// from, to: homes. Key::microbatch is `microbatches + tie`, which no micro-batch of the schedule has.
ValueExchange::Key tie_message(const schedule::Schedule& schedule, std::size_t tie, int from, int to);
// The messages of all ranks and ties. Those of one edge and direction are in the order of the ties.
std::vector<ValueExchange::Key> tie_messages(const StageGraph& graph, const schedule::Schedule& schedule);

// The number of values in a message, which is a message of a tie or of an edge of the graph.
std::size_t values_in(const ValueExchange::Key& message, const StageGraph& graph,
                      const schedule::Schedule& schedule);

}  // namespace weft::pipeline

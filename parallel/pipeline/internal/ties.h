// Ties: the messages with which the ranks add the gradients of tied parameters, at the end of a step.
//
// Of each tie, a rank sends the sum of its gradients to each other rank that has one of the parameters.
// The messages go between the ranks' homes: a home is the first stage of its rank that has one. All ranks add
// the sums in the order of the homes, so that the results are equal to the bit. Pure functions.
#pragma once

#include <weft/parallel/pipeline/internal/value_exchange.h>

#include <cstddef>
#include <vector>

namespace weft::pipeline {

std::vector<int> homes_of(const Tie& tie, const schedule::Schedule& schedule);  // ascending
// from, to: homes. Its number of a micro-batch is one that the schedule does not have.
ValueExchange::Key tie_message(const schedule::Schedule& schedule, std::size_t tie, int from, int to);
// Of all ranks and ties; those of one edge and direction in the order of the ties.
std::vector<ValueExchange::Key> tie_messages(const StageGraph& graph, const schedule::Schedule& schedule);

// How many values a message has, of a tie or along an edge of the graph.
std::size_t values_in(const ValueExchange::Key& message, const StageGraph& graph,
                      const schedule::Schedule& schedule);

}  // namespace weft::pipeline

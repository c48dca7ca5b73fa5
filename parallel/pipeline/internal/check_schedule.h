// What an executor of one step can run. Pure functions.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>

#include <string>

namespace weft::pipeline {

// Throws an error that begins with `executor`. invalid_argument: the schedule is invalid, or has another
// number of stages than the graph. unsupported: replicated stages, versions of weights.
void check_schedule(const std::string& executor, const StageGraph& graph, const schedule::Schedule& schedule);

// Without messages and waits.
schedule::Schedule computations_of(schedule::Schedule schedule);

bool has_backward(const schedule::Schedule& schedule);
bool has_recomputation(const schedule::Schedule& schedule);

}  // namespace weft::pipeline

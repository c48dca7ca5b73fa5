// What an executor can run: checks of a schedule and its graph. Pure functions.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>

#include <functional>
#include <string>

namespace weft::pipeline {

struct Supported {
  bool replicas = false;       // of stages
  bool steps = false;          // of an optimizer, and versions of weights
  bool has_optimizer = false;  // which makes the steps
  bool reduces_all = false;    // the gradients of stages that are not replicated too
  bool sharded = false;        // stages
};
// Throws an error that begins with `executor`. invalid_argument: the schedule is invalid; it has another
// number of stages than the graph; it has optimizer steps and there is no optimizer; or some gradients of a
// stage are not reduced or not stepped. unsupported: what the executor cannot do.
void check_schedule(const std::string& executor, const StageGraph& graph, const schedule::Schedule& schedule,
                    Supported supported = {});

// unsupported: ties of replicated stages, or of stages that step their parameters.
void check_ties(const std::string& executor, const StageGraph& graph, const schedule::Schedule& schedule);

// Without messages and waits.
schedule::Schedule computations_of(schedule::Schedule schedule);

// invalid_argument: two stages share a parameter, and may_share(first, second) is false.
void refuse_shared_parameters(const std::string& executor, const StageGraph& graph,
                              const std::function<bool(int first, int second)>& may_share);

bool has_backward(const schedule::Schedule& schedule);
bool has_recomputation(const schedule::Schedule& schedule);
bool has_steps(const schedule::Schedule& schedule);       // of an optimizer
bool has_reductions(const schedule::Schedule& schedule);  // of gradients
bool has_sharding(const schedule::Schedule& schedule);    // of stages
// invalid_argument: a rank computes a stage that it does not unshard.
void expect_all_unsharded(const std::string& executor, const schedule::Schedule& schedule);

}  // namespace weft::pipeline

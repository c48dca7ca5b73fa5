// Checks whether an executor can run a schedule with a graph of stages. Pure functions.
#pragma once

#include <weft/parallel/pipeline/stage_graph.h>

#include <functional>
#include <string>

namespace weft::pipeline {

// The features that the executor supports.
struct Supported {
  bool replicas = false;       // replicated stages
  bool steps = false;          // optimizer steps and versions of weights
  bool has_optimizer = false;  // the caller has given an optimizer, for these steps
  bool reduces_all = false;    // gradients must also be reduced for stages without replicas
  bool sharded = false;        // sharded stages
};
// executor: its name, for errors. invalid_argument: the schedule is invalid; the schedule and the graph have
// different numbers of stages; the schedule has optimizer steps and supported.has_optimizer is false; or some
// gradients of a stage are not reduced, or no optimizer step uses them. unsupported: the schedule needs a
// feature that `supported` does not have.
void check_schedule(const std::string& executor, const StageGraph& graph, const schedule::Schedule& schedule,
                    Supported supported = {});

// unsupported: a tied parameter is in a replicated stage, or the schedule has optimizer steps.
void check_ties(const std::string& executor, const StageGraph& graph, const schedule::Schedule& schedule);

// Returns the schedule without messages and waits.
schedule::Schedule computations_of(schedule::Schedule schedule);

// invalid_argument: two stages share a parameter, and may_share(first, second) is false.
void refuse_shared_parameters(const std::string& executor, const StageGraph& graph,
                              const std::function<bool(int first, int second)>& may_share);

bool has_steps(const schedule::Schedule& schedule);       // optimizer steps
bool has_reductions(const schedule::Schedule& schedule);  // reductions of gradients
bool has_sharding(const schedule::Schedule& schedule);    // sharded stages
// For a step. failed_precondition: the schedule has no backward.
void expect_backward(const schedule::Schedule& schedule);
// invalid_argument: a rank computes a stage that it does not unshard.
void expect_all_unsharded(const std::string& executor, const schedule::Schedule& schedule);

}  // namespace weft::pipeline

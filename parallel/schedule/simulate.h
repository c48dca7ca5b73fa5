// predict: the time, the bubble and the memory of a schedule, from the costs of its actions.
//
// The simulator runs each rank's list in order. An action starts when its inputs have arrived and the rank is
// free. Messages take the time of their link and do not occupy the rank; those of one direction between two
// ranks follow each other. A pure function.
#pragma once

#include <weft/parallel/schedule/schedule.h>

#include <map>
#include <utility>
#include <vector>

namespace weft::schedule {

// The costs of one stage, for one micro-batch.
struct StageCost {
  // In seconds. A full backward takes the sum of the times of the input and the weight gradient.
  double forward = 1, input_gradient = 1, weight_gradient = 1;
  double recompute = 1;
  // Memory in any unit. activation: kept by a forward for its backward. kept_for_weight_gradient: the part of
  // `activation` that the weight gradient still needs after the input gradient. checkpoint: kept by a forward
  // that is recomputed.
  double activation = 1, kept_for_weight_gradient = 1, checkpoint = 0;
};

// The costs of all actions.
struct Costs {
  std::vector<StageCost> stages = {StageCost{}};     // one for each stage, or one for all
  double link = 0;                                   // seconds of a message
  std::map<std::pair<int, int>, double> links = {};  // by (from rank, to rank), if not `link`
  double overlap = 1;          // the time of an overlapped pair, as a share of the sum of its parts
  double reduce_gradient = 0;  // seconds from the last replica's start of the reduction
  double unshard = 0, optimizer_step = 0;  // seconds
};

// The time of one action, predicted or measured by an executor. Seconds from the start of the step.
struct Span {
  std::size_t action = 0;  // index in the rank's list
  double start = 0, finish = 0;
};
struct Transfer {
  Action send;
  int from = 0, to = 0;  // ranks
  double start = 0, finish = 0;
};
struct Timeline {
  std::vector<std::vector<Span>> ranks;
  std::vector<Transfer> transfers;
};

// The result of predict().
struct Prediction {
  Timeline timeline;  // of the first step
  double time = 0;    // of one step alone, until the last rank completes
  // For steps that end with a barrier, as those of the executors: the share of `time` in which a rank is
  // idle, on average over the ranks.
  double bubble_with_barrier = 0;
  // For steps that follow each other without a barrier. period: the time from rank 0's start of a step to its
  // start of the next one. bubble: the share of the period in which rank 0 is idle.
  double period = 0, bubble = 0;
  std::vector<double> busy;              // of each rank, in one step
  std::vector<double> peak_activations;  // of each rank
};

// invalid_argument: the schedule is invalid (validate.h), or the costs have another number of stages.
WEFT_EXPORT Prediction predict(const Schedule& schedule, const Costs& costs = {});

}  // namespace weft::schedule

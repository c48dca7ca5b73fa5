// plan: how to split the ranks of a machine into data, pipeline and tensor parallel, for the fastest step.
//
//   const planner::Model model{.profile = partition::parse_profile(text)};
//   const planner::Machine machine{.hosts = 4, .ranks_per_host = 8, .memory_bytes = 40e9};
//   const planner::Plans found = planner::plan(model, machine, {.global_batch = 256});
//   for (const planner::Plan& each : found.plans) ...  // the fastest first: each.choice, each.step_seconds
//   for (const planner::Refusal& each : found.refused) ...  // what is impossible, and why
//
// plan() predicts the step of each factorization data × pipeline × tensor of the ranks, with each schedule,
// and gives the best ones that fit into the memory of a rank. The model:
//
//   computation   the times of the profile. Stages are consecutive layers (balance_exactly, balance_by_size).
//                 schedule::predict() gives the time of the pipeline and the peak of its activations.
//   tensor        `reductions` all-reduces of a split layer's output in each direction, which no computation
//                 hides; see rank_model() (cost_model.h).
//   pipeline      a message for each value that changes its rank. All messages between two ranks take as
//                 long as the largest of them. Each rank of a tensor group sends the whole output.
//   data          an all-reduce of the gradients. With several stages each stage is reduced after its last
//                 weight gradient, as GroupPipeline does, while the rank computes other stages. With one
//                 stage, buckets are reduced during the backward of the last micro-batch, as
//                 DistributedDataParallel does. The step becomes longer by the last bucket. If the other
//                 buckets take longer than that backward, it also becomes longer by the difference.
//   memory        parameters, gradients of the same size, optimizer_bytes, and the peak of the activations.
//
// The model does not include: the lower efficiency of smaller micro-batches and of split layers; parts of a
// split layer that are not split; that a column-parallel layer computes its weight gradient with its input
// gradient; the optimizer's step; the overhead of an executor; buffers of messages and of the allocator;
// memory that is split over data parallel ranks (ZeRO, FSDP); and recomputation. A full backward counts half
// as input and half as weight gradient.
//
// Pure functions. Errors: rpc::Error with invalid_argument. Thread-safety: values.
#pragma once

#include <weft/parallel/planner/cost_model.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace weft::planner {

// The choices of plan().
struct Options {
  int global_batch = 0;  // samples of a step; 0: 4 micro-batches of the profile for each rank
  // The numbers of samples of a micro-batch to try; empty: only the profile's.
  std::vector<int> microbatches = {};
  // Names from schedules(); empty: all of them.
  std::vector<std::string> schedules = {};
  int max_chunks = 4;          // stages on a rank of the interleaved schedules: 2, 4, ... up to this number
  double optimizer_bytes = 2;  // the optimizer's state for each byte of parameters: 0 SGD, 1 momentum, 2 Adam
  // For schedules that split the backward: the time of its two parts together, relative to a whole backward.
  double split_backward = 1;
  double bucket_bytes = 25 << 20;          // of data parallel training without a pipeline
  int data = 0, pipeline = 0, tensor = 0;  // only factorizations with these sizes; 0: any
  std::size_t plans = 5;                   // maximum number of plans to return
  bool every_schedule = false;             // true: several plans for a factorization; false: only its best
};

enum class Balance { time, memory };  // the cost that is balanced over the stages

// A factorization, with its schedule and micro-batches.
struct Choice {
  Grid grid = {};
  std::string schedule = {};  // with one stage "1f1b": each forward is followed by its backward
  int chunks = 1;             // stages on each rank
  int microbatch = 1;         // samples
  Balance balance = Balance::time;

  bool operator==(const Choice&) const = default;
};

// The memory of one rank, in bytes.
struct Memory {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0;              // bytes
  double total() const { return parameters + gradients + optimizer + activations; }  // bytes
};

struct Plan {
  Choice choice = {};
  int microbatches = 1;  // of a pipeline in one step
  double step_seconds = 0;
  double pipeline_seconds = 0;      // of the computations and messages, as schedule::predict() has them
  double reduction_seconds = 0;     // of the gradients' all-reduce, as far as it adds to the step
  double tensor_seconds = 0;        // of the rank with most tensor all-reduces; part of pipeline_seconds
  double bubble = 0;                // the share of pipeline_seconds in which the ranks are idle
  std::vector<Memory> memory = {};  // of each pipeline rank
  std::vector<std::string> first_layers = {};  // the first layer of each stage after the first stage

  WEFT_EXPORT const Memory& fullest() const;  // of the rank that needs the most
};

// A factorization for which no choice is possible.
struct Refusal {
  Grid grid;
  std::string why;               // "memory", or why the first choice is impossible
  std::optional<Memory> memory;  // the least that the fullest rank needs; activations 0: not included
};

struct Plans {
  std::vector<Plan> plans = {};       // by ascending step time, then by ascending memory
  std::vector<Refusal> refused = {};  // by data, pipeline and tensor
  int global_batch = 0;
  // The number of choices that are possible with enough memory, and the number of these that were simulated.
  // Choices that cannot be among the best, or whose parameters do not fit, are not simulated.
  std::size_t choices = 0, simulated = 0;
};

// The names of the schedules that plan() tries: all flush schedules except the shifting buffer.
WEFT_EXPORT std::vector<std::string_view> schedules();

// invalid_argument: a malformed profile, a number that is not positive and finite, an unknown schedule, or a
// size that does not divide the number of ranks.
WEFT_EXPORT Plans plan(const Model& model, const Machine& machine, const Options& options = {});

// The prediction for one choice, even if it does not fit into the memory. invalid_argument: as for plan(), or
// the choice is impossible even without a memory limit.
WEFT_EXPORT Plan predict(const Model& model, const Machine& machine, const Options& options,
                         const Choice& choice);

}  // namespace weft::planner

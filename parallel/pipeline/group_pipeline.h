// GroupPipeline: trains a model whose stages live on the ranks of a process group, by any schedule.
//
//   // on every rank of the group
//   auto own = pipeline::stages_of(schedule, group.rank());
//   auto graph = pipeline::cut(layers(), {.cuts = {3, 6}, .built = own});
//   pipeline::GroupPipeline pipeline{group, graph, schedule, {.loss = loss}};
//   torch::optim::SGD optimizer(graph.parameters(), 0.1);
//   ...
//   optimizer.zero_grad();
//   auto step = pipeline.step({images}, {labels});   // on all ranks; gradients are in .grad
//   optimizer.step();
//
// The form of torch.distributed.pipelining: all ranks run one program. A stage computes on the thread that
// calls step(), which may block. Between ranks on GPUs values travel by NCCL, each edge and direction with a
// separate communicator; all others as messages of the group, through the host's memory. The gradients are
// those of LocalPipeline, and those of stages on this rank are added to `.grad` when all ranks have computed
// theirs.
//
// With GroupPipelineOptions::optimizer the stages step their parameters, as in LocalPipeline: PipeDream runs
// here, also with replicated stages. Replicas begin with the values of the first one and have the same
// parameters from then on; buffers, such as the statistics of batch norms, are each replica's own. To train
// several pipelines on different data, give each stage's counterparts a group:
// GroupPipelineOptions::data_parallel. With GroupPipelineOptions::sharded each of these ranks has a part of
// the stage's parameters:
//
//   pipeline::GroupPipeline pipeline{
//       mesh.group("pipeline"), graph, schedule,
//       {.loss = loss, .data_parallel = mesh.group("data"), .sharded = sharded::ShardOptions{}}};
//   sharded::FullyShardedOptimizer optimizer(pipeline.sharded(), torch::optim::AdamWOptions(3e-4));
//
// If a stage throws, a value does not come within the timeout, or a rank gives other data than the others
// expect, the step fails on all ranks and aborts the group: the text names the stage, the micro-batch and the
// action; give the pipeline new groups with set_groups(), and sharded stages values. Stages must not use
// collectives of this group. Not thread-safe; one step at a time.
#pragma once

#include <weft/dist_optim/local/step_target.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/pipeline/layer_graph.h>
#include <weft/parallel/pipeline/loss.h>
#include <weft/parallel/schedule/simulate.h>
#include <weft/parallel/sharded/sharded_units.h>

#include <chrono>
#include <memory>
#include <optional>
#include <vector>

namespace weft::pipeline {

struct GroupPipelineOptions {
  Loss loss;
  bool mean_loss = true;  // false: the losses of micro-batches are added
  // Of each stage's parameters that require grad when the pipeline is made. Stages must not share parameters
  // if it is set.
  std::optional<dist_optim::OptimizerSpec> optimizer = {};
  // The ranks that compute the same stages as this one in other pipelines: their parameters and buffers begin
  // with the values of its rank 0, and the gradients of a stage become the mean over it, after the stage's
  // last backward; sparse ones become dense. A step that fails aborts this group too.
  std::optional<collectives::Group> data_parallel = {};
  // Each rank of data_parallel has a part of the parameters, their gradients and the optimizer's state
  // (FSDP), and an optimizer steps the parts: GroupPipeline::sharded(). A stage is whole from an UNSHARD of
  // the schedule to the RESHARD; schedule::add_unsharding adds them to a schedule without. The modules'
  // parameters have no elements at other times, and none after the pipeline is destroyed. With
  // ShardOptions::compute, floating-point inputs of the step are converted, targets and buffers are not.
  std::optional<sharded::ShardOptions> sharded = {};
  // Of this rank's stages; empty: where they are, and values travel through the host's memory.
  std::optional<c10::Device> device = {};
  bool values_through_host = false;  // also between GPUs; the same on all ranks
  // For a value that a stage waits for, a gather, and a reduction.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
};

// On every rank.
struct GroupStep {
  std::vector<at::Tensor> losses;  // by micro-batch, without their weights
  at::Tensor loss;                 // of the batch
  schedule::Timeline timeline;     // as measured, by the ranks' clocks
};

class WEFT_EXPORT GroupPipeline {
 public:
  // Called by all ranks. graph: this rank's stages are here. The schedule has a rank for each of the group's;
  // messages in it are not needed. invalid_argument: it does not fit the graph or the group, the ranks have
  // different cuts, schedules or optimizers, a stage of this rank has no module, stages of two ranks share a
  // parameter (tie copies: LayerGraph::tie), there is no loss, or the schedule steps parameters and there is
  // no optimizer. unsupported: NCCL does not connect ranks on GPUs; ties, and an optimizer or replicated
  // stages; replicated ones, or optimizer steps in the schedule, with GroupPipelineOptions::data_parallel.
  // Of sharded stages, invalid_argument: data_parallel is not given, a stage is computed without an UNSHARD,
  // two stages have a parameter of one name or the same one, or sharded::units_of() refuses it; unsupported:
  // ties, an optimizer in the options, or a rank's stages on several devices; failed_precondition: the ranks
  // of data_parallel have different stages.
  GroupPipeline(collectives::Group group, StageGraph graph, schedule::Schedule schedule,
                GroupPipelineOptions options);
  ~GroupPipeline();
  GroupPipeline(const GroupPipeline&) = delete;
  GroupPipeline& operator=(const GroupPipeline&) = delete;

  // inputs: on ranks whose stages use them; targets: on the last stage's ranks; other ranks may leave them
  // out. If there are fewer rows than micro-batches, each row is a micro-batch. invalid_argument: no rows,
  // different numbers of rows, or a tensor that requires grad. failed_precondition: the schedule has no
  // backward.
  GroupStep step(const Values& inputs, const Values& targets);
  // Between steps, or after one has failed: trains on with these groups, in place, after pipelines were lost
  // or added. All ranks of all pipelines call it; a rank of a new pipeline constructs it instead, except with
  // sharded stages: there it constructs it with a data_parallel group of one rank, and then calls this too.
  // group: as many ranks as before, this one in its place. data_parallel: if and only if it was given before.
  // Parameters and buffers become those of its rank 0; the parts of sharded stages are zero, and their
  // gradients are dropped: give them values as after ShardedModule::set_group(). invalid_argument: a group
  // does not fit, or the ranks differ as for the constructor.
  void set_groups(collectives::Group group, std::optional<collectives::Group> data_parallel = {});

  // On the last stage's ranks its outputs of all rows, without gradients; other ranks get an empty list.
  Values evaluate(const Values& inputs);

  // Of a stage of this rank; for its learning rate and its state, between two steps, and on all replicas.
  // Its step() and move_to() are the pipeline's. failed_precondition: no optimizer.
  dist_optim::StepTarget& optimizer(int stage);
  // The parts that this rank has of its stages' parameters, for an optimizer and for checkpoints, with the
  // names that the stages' modules give them. failed_precondition: GroupPipelineOptions::sharded is not set.
  const sharded::ShardedUnits& sharded() const;
  const StageGraph& graph() const;
  const schedule::Schedule& schedule() const;  // with the graph's edges

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::pipeline

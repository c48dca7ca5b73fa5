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
// As in torch.distributed.pipelining, all ranks run one program. A stage computes on the thread that calls
// step(), which may block. Ranks on GPUs send values by NCCL, with a separate communicator for each edge and
// direction; all other values are messages of the group, through host memory. The gradients are those of
// LocalPipeline. When all ranks have computed their gradients, each rank adds the gradients of its stages to
// `.grad`.
//
// With GroupPipelineOptions::optimizer the stages step their parameters, as in LocalPipeline. This supports
// PipeDream's schedules, also with replicated stages. Replicas start with the values of the first replica and
// keep equal parameters; their buffers, such as the statistics of batch norms, may differ. To train several
// pipelines on different data, create a group of the ranks that compute the same stages in all pipelines, and
// set GroupPipelineOptions::data_parallel. With GroupPipelineOptions::sharded, each of these ranks has a part
// of the stages' parameters:
//
//   pipeline::GroupPipeline pipeline{
//       mesh.group("pipeline"), graph, schedule,
//       {.loss = loss, .data_parallel = mesh.group("data"), .sharded = sharded::ShardOptions{}}};
//   sharded::FullyShardedOptimizer optimizer(pipeline.sharded(), torch::optim::AdamWOptions(3e-4));
//
// If a stage throws, a value does not arrive within the timeout, or a rank sends other data than another rank
// expects, the step fails on all ranks and aborts the group. The error names the stage, the micro-batch and
// the action. Then call set_groups() with new groups, and set the values of sharded stages. Stages must not
// use collectives of this group. Not thread-safe; one step at a time.
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
  // The optimizer of each stage's parameters that require grad at a step. If it is set, stages must not share
  // parameters.
  std::optional<dist_optim::OptimizerSpec> optimizer = {};
  // A group of the ranks that compute the same stages as this rank in all pipelines. Their parameters and
  // buffers start with the values of the group's rank 0. After a stage's last backward, its gradients are
  // averaged over the group; sparse gradients become dense. Between two steps, the program may freeze and
  // unfreeze parameters, equally on all these ranks. A step that fails aborts this group too.
  std::optional<collectives::Group> data_parallel = {};
  // If it is set, each rank of data_parallel has a part of the parameters, their gradients and the
  // optimizer's state (FSDP). Create an optimizer of GroupPipeline::sharded(), which steps the parts. A stage
  // is whole from an UNSHARD action of the schedule to the RESHARD action; schedule::add_unsharding() adds
  // these actions. At other times, and after the pipeline is destroyed, the modules' parameters have no
  // elements. With ShardOptions::compute, floating-point inputs of the step are converted, but not targets
  // and buffers.
  std::optional<sharded::ShardOptions> sharded = {};
  // The device of this rank's stages; nullopt: the stages stay on their devices, and values are sent through
  // host memory.
  std::optional<c10::Device> device = {};
  bool values_through_host = false;  // true: also values between GPUs; equal on all ranks
  // The timeout of a stage that waits for a value, of a gather, of a reduction, and of a rank that has
  // completed its actions and waits for the other ranks to complete theirs.
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};
};

// The result of a step, on every rank.
struct GroupStep {
  std::vector<at::Tensor> losses;  // by micro-batch, without their weights
  at::Tensor loss;                 // of the batch
  schedule::Timeline timeline;     // as measured, by the ranks' clocks
};

class WEFT_EXPORT GroupPipeline {
 public:
  // All ranks call it. graph: must have the modules of this rank's stages. schedule: must have as many ranks
  // as the group; it needs no messages. invalid_argument: the schedule does not fit the graph or the group;
  // the ranks have different cuts, schedules or optimizers; a stage of this rank has no module; stages of two
  // ranks share a parameter (use LayerGraph::tie instead); there is no loss; or the schedule has optimizer
  // steps and there is no optimizer. unsupported: NCCL does not connect ranks on GPUs; ties together with an
  // optimizer or with replicated stages; replicated stages, or optimizer steps in the schedule, together with
  // GroupPipelineOptions::data_parallel.
  // For sharded stages, invalid_argument: data_parallel is not given, a stage is computed without an UNSHARD,
  // two stages share a parameter or have parameters of the same name, or sharded::units_of() refuses a
  // parameter; unsupported: ties, an optimizer in the options, or a rank's stages on several devices;
  // failed_precondition: the ranks of data_parallel have different stages.
  // If one rank refuses its arguments, the constructor fails on all ranks of all pipelines: on the others
  // with failed_precondition, which states the refusal. It aborts the groups if it fails later.
  GroupPipeline(collectives::Group group, StageGraph graph, schedule::Schedule schedule,
                GroupPipelineOptions options);
  ~GroupPipeline();
  GroupPipeline(const GroupPipeline&) = delete;
  GroupPipeline& operator=(const GroupPipeline&) = delete;

  // inputs: needed on ranks whose stages use them. targets: needed on the last stage's ranks. Other ranks may
  // leave them empty. If there are fewer rows than micro-batches, each row is a micro-batch.
  // invalid_argument: no rows, different numbers of rows, or a tensor that requires grad.
  // failed_precondition: the schedule has no backward.
  GroupStep step(const Values& inputs, const Values& targets);
  // Replaces the groups of this object, after pipelines were lost or added. All ranks of all pipelines call
  // it, between steps or after a step has failed. A rank of a new pipeline constructs the GroupPipeline
  // instead. If its stages are sharded, it first gives the constructor a data_parallel group of one rank, and
  // then also calls set_groups(). group: must have as many ranks as before, with this rank in its previous
  // place. data_parallel: set it if and only if it was set before. Parameters and buffers get the values of
  // rank 0 of data_parallel. The parts of sharded stages are zero, and their gradients are dropped: set their
  // values as after ShardedModule::set_group(). invalid_argument: a group does not fit, or the ranks differ
  // as for the constructor.
  void set_groups(collectives::Group group, std::optional<collectives::Group> data_parallel = {});

  // Runs only forwards, without gradients. On the last stage's ranks, returns the outputs of all rows; on
  // other ranks, an empty list. A 0-dimensional output, such as an auxiliary loss, is combined from those of
  // the micro-batches as the losses are (GroupPipelineOptions::mean_loss).
  Values evaluate(const Values& inputs);

  // The optimizer of a stage of this rank. Use it between steps, and equally on all replicas, to change its
  // learning rate and state; do not call its step() and move_to(). The reference is valid until the next
  // step. It has the parameters that required grad at construction or in a step, and refuses the state of
  // others: unfreeze these before the GroupPipeline is constructed. failed_precondition: there is no
  // optimizer.
  dist_optim::StepTarget& optimizer(int stage);
  // This rank's parts of the parameters of its stages, for an optimizer and for checkpoints. They have the
  // names that the parameters have in the stages' modules. failed_precondition: GroupPipelineOptions::sharded
  // is not set.
  const sharded::ShardedUnits& sharded() const;
  const StageGraph& graph() const;
  const schedule::Schedule& schedule() const;  // with the graph's edges

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft::pipeline

// StageParameters: the parameters of one stage on one rank: the gradients of a step, and, if the schedule
// steps them, their optimizer and the versions of their values that later computations need.
//
// Version v of a schedule is the values after v of the step's optimizer steps. The module's tensors hold the
// version that was loaded last; between two steps of the pipeline they hold the newest one.
//
// The parameters of a sharded stage are a unit of ShardedUnits, to which their gradients go. Not thread-safe.
#pragma once

#include <weft/dist_optim/local/parameter_versions.h>
#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/parallel/collectives/group.h>
#include <weft/parallel/pipeline/leaf_gradients.h>
#include <weft/parallel/pipeline/stage_graph.h>
#include <weft/parallel/sharded/sharded_units.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace weft::pipeline {

struct ParameterOptions {
  std::optional<dist_optim::OptimizerSpec> optimizer = {};
  // The ranks that reduce the gradients of the stage, and how: the sum over the replicas in this pipeline,
  // whose micro-batches belong to one step, or the mean over the same stage in other pipelines.
  std::optional<collectives::Group> group = {};
  collectives::ReduceOp op = collectives::ReduceOp::sum;
  // A step gets the mean of its micro-batches' gradients; false: their sum.
  bool mean_loss = true;
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};  // of a reduction
  // Where the parameters are, if the stage is sharded; then there is neither an optimizer nor a group.
  sharded::ShardedUnits* units = nullptr;
  std::size_t unit = 0;
};

class StageParameters {
 public:
  StageParameters(const torch::nn::Module& module, const schedule::Schedule& schedule, int rank, int stage,
                  ParameterOptions options);
  ~StageParameters();

  // Between steps, or after one has failed: the ranks that reduce gradients from now on.
  void set_group(std::optional<collectives::Group> group) { options_.group = std::move(group); }

  dist_autograd::GradientSink& sink();               // of the stage's backwards
  LeafGradients& gradients() { return gradients_; }  // without those of a sharded stage's parameters
  // At the start of each step of the pipeline. The program may have given the parameters other memory since
  // the last one (torch::load does).
  void begin();
  // Before each computation: the parameters of a sharded stage have their values from then on.
  void make_whole();
  // Whether the tensor has memory of a sharded stage's parameter, which a `reshard` takes away.
  bool shares_gathered_memory(const at::Tensor& tensor) const;
  // Runs an action that is not a computation. shares: of the micro-batches' losses in the gradients, by
  // micro-batch.
  void run(const schedule::Action& action, const std::vector<double>& shares);
  // At the end of a step that has completed: without an optimizer the gradients are added to `.grad`.
  void publish();
  // After a step that has failed: drops gradients that no optimizer step has used.
  void clear();

  // Null: without ParameterOptions::optimizer.
  dist_optim::StepTarget* optimizer() const { return optimizer_.get(); }

 private:
  class ShardGradients;

  void run_sharded(schedule::Op op);
  void load(int version);
  void step(const std::vector<double>& shares);
  void start_reduction();
  void finish_reduction();
  void keep_newest_alone();

  const std::vector<dist_optim::Parameter> parameters_;
  ParameterOptions options_;
  const std::vector<std::vector<int>> batches_;  // the micro-batches of each step, over all replicas
  const std::map<int, int> loads_;               // of each version in the rank's list
  LeafGradients gradients_;
  const std::unique_ptr<ShardGradients> shard_gradients_;  // of a sharded stage
  // With an optimizer.
  std::unique_ptr<dist_optim::ShadowLeaves> optimizer_;
  std::optional<dist_optim::ParameterVersions> versions_;

  // Of the step that runs. Versions are those of the schedule.
  dist_optim::ParameterVersions::Version first_ = 0;  // in versions_, of version 0
  int newest_ = 0, loaded_ = 0;
  std::set<int> stashed_;
  std::map<int, int> loads_left_;

  struct Reduction {
    std::vector<at::Tensor> gradients;  // by parameter
    at::Tensor has_gradient;            // by parameter: above 0 if a rank has one
    std::vector<rpc::Future<void>> done;
  };
  std::optional<Reduction> reduction_;
};

// Of a stage. failed_precondition: the stage is not here, or has no optimizer.
dist_optim::StepTarget& optimizer_of(const std::string& executor, std::map<int, StageParameters>& parameters,
                                     int stage);

}  // namespace weft::pipeline

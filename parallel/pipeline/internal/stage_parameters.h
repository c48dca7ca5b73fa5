// StageParameters: the parameters of one stage on one rank, and their gradients in a step. If the schedule
// contains optimizer steps, StageParameters also has the optimizer, and the versions of the parameters that
// later computations need.
//
// A step of the pipeline may contain several optimizer steps. Version v of the parameters is their values
// after v optimizer steps. The module's tensors hold the version that was loaded last; between two steps of
// the pipeline they hold the newest version.
//
// The parameters of a sharded stage are a unit of ShardedUnits, which also receives their gradients. Not
// thread-safe.
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
  // The ranks that reduce the gradients of the stage, and the operation. If the ranks are replicas of the
  // stage in this pipeline, their micro-batches belong to one step: use the sum. If they are the same stage
  // of several pipelines: use the mean.
  std::optional<collectives::Group> group = {};
  collectives::ReduceOp op = collectives::ReduceOp::sum;
  // true: an optimizer step uses the mean of its micro-batches' gradients; false: their sum.
  bool mean_loss = true;
  std::chrono::nanoseconds timeout = std::chrono::minutes{10};  // of a reduction
  // The units that contain the parameters, and the index of the stage's unit, if the stage is sharded: then
  // neither `optimizer` nor `group` is set. null: the stage is not sharded.
  sharded::ShardedUnits* units = nullptr;
  std::size_t unit = 0;
};

class StageParameters {
 public:
  StageParameters(const torch::nn::Module& module, const schedule::Schedule& schedule, int rank, int stage,
                  ParameterOptions options);
  ~StageParameters();

  // Sets the ranks that reduce gradients from now on. Call it between steps of the pipeline, or after a step
  // has failed.
  void set_group(std::optional<collectives::Group> group) { options_.group = std::move(group); }

  dist_autograd::GradientSink& sink();               // receives the gradients of the stage's backwards
  LeafGradients& gradients() { return gradients_; }  // without those of a sharded stage's parameters
  // Call it at the start of each step of the pipeline, or of each evaluation (with_backward false). The
  // program may have given the parameters other memory since the last step (torch::load does), and may have
  // frozen or unfrozen some. The ranks of ParameterOptions::group then compare which parameters require grad;
  // if they differ, the first reduction of the step fails with failed_precondition on all these ranks.
  void begin(bool with_backward);
  // Call it before each computation. If the stage is sharded, its parameters have their whole values
  // afterwards.
  void make_whole();
  // Whether the tensor shares memory with a parameter of a sharded stage. Op::reshard frees that memory.
  bool shares_gathered_memory(const at::Tensor& tensor) const;
  // Runs an action that is not a computation. shares: by micro-batch, the weight of its loss in the summed
  // gradients (Microbatches::weights).
  void run(const schedule::Action& action, const std::vector<double>& shares);
  // Call it when a step of the pipeline has completed. Without an optimizer, adds the gradients to `.grad`.
  // Keeps only the newest version.
  void publish();
  // Call it when a step of the pipeline has failed. Drops gradients that no optimizer step has used. Keeps
  // only the newest version.
  void clear();

  // Null if ParameterOptions::optimizer was not set. Valid until begin().
  dist_optim::StepTarget* optimizer() const { return optimizer_.get(); }

 private:
  class ShardGradients;

  void run_sharded(schedule::Op op);
  void follow_parameters();
  void start_comparison();
  void finish_comparison();
  void load(int version);
  void step(const std::vector<double>& shares);
  void start_reduction();
  void finish_reduction();
  void keep_newest_alone();

  const std::vector<dist_optim::Parameter> all_;   // the module's
  std::vector<dist_optim::Parameter> parameters_;  // that require grad, or that the optimizer has
  ParameterOptions options_;
  const std::vector<std::vector<int>> batches_;  // the micro-batches of each step, over all replicas
  const std::map<int, int> loads_;               // by version: its loads in the rank's list of actions
  LeafGradients gradients_;
  const std::unique_ptr<ShardGradients> shard_gradients_;  // null: the stage is not sharded
  // Set if ParameterOptions::optimizer is set.
  std::unique_ptr<dist_optim::ShadowLeaves> optimizer_;
  std::optional<dist_optim::ParameterVersions> versions_;

  // State of the step that runs. Version numbers are those of the schedule.
  dist_optim::ParameterVersions::Version first_ = 0;  // the number that version 0 has in versions_
  int newest_ = 0, loaded_ = 0;
  std::set<int> stashed_;
  std::map<int, int> loads_left_;

  struct Comparison {
    at::Tensor found;  // for each of all_: 1 if some rank has it in parameters_; 1 if some rank has it not
    rpc::Future<void> done;
  };
  std::optional<Comparison> comparison_;  // in flight

  struct Reduction {
    std::vector<at::Tensor> gradients;  // by parameter
    at::Tensor has_gradient;            // by parameter: above 0 if some rank has a gradient
    std::vector<rpc::Future<void>> done;
  };
  std::optional<Reduction> reduction_;
};

// The optimizer of a stage. executor: the caller's name, for the error. failed_precondition: the stage is not
// here, or has no optimizer.
dist_optim::StepTarget& optimizer_of(const std::string& executor, std::map<int, StageParameters>& parameters,
                                     int stage);

}  // namespace weft::pipeline

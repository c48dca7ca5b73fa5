// FullyShardedOptimizer: the optimizer of a FullyShardedDataParallel, whose state can be saved in checkpoints
// and resumed on another number of ranks.
//
//   sharded::FullyShardedOptimizer optimizer(fsdp, torch::optim::AdamWOptions(3e-4));
//   ...
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
//
// A step changes this rank's parts of the parameters, and runs no collective. The spec's parameter groups
// refer to the names of the module's parameters. One of LibTorch's optimizers over fsdp.parameters() has the
// same results, but its state cannot be split over another number of ranks. Not thread-safe.
#pragma once

#include <weft/dist_optim/local/shadow_leaves.h>
#include <weft/parallel/sharded/sharded_module.h>
#include <weft/parallel/sharded/training_state.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::sharded {

class WEFT_EXPORT FullyShardedOptimizer {
 public:
  // The module must outlive the optimizer. invalid_argument: the optimizer is not elementwise
  // (OptimizerSpec::is_elementwise), or a parameter group has no parameter.
  FullyShardedOptimizer(const ShardedModule& module, dist_optim::OptimizerSpec spec)
      : FullyShardedOptimizer(module.units(), std::move(spec)) {}
  // For the stages of a pipeline: units is GroupPipeline::sharded().
  FullyShardedOptimizer(const ShardedUnits& units, dist_optim::OptimizerSpec spec);

  // Steps the parameters that have a gradient.
  void step();
  void zero_grad(bool set_to_none = true);

  // The learning rate of the parameter group with this prefix; "" means the parameters that are in no group.
  // set_learning_rate() with nullopt sets all groups. not_found: no group has this prefix.
  double learning_rate(const std::string& group = {}) const { return leaves_->learning_rate(group); }
  void set_learning_rate(double rate, const std::optional<std::string>& group = {}) {
    leaves_->set_learning_rate(rate, group);
  }

  // Call it after ShardedModule::set_group(): the optimizer then steps the new parts. Learning rates are
  // kept; the rest of the state starts at zero, unless take_from() follows.
  void set_group();

  // See training_state.h.
  void add_to(SlicedState& state, const std::string& prefix = "optimizer/") const;
  void add_wanted_to(SlicedState& state, const std::vector<std::string>& names,
                     const std::string& prefix = "optimizer/") const;
  void take_from(const SlicedState& state, const std::string& prefix = "optimizer/");

 private:
  const ShardedUnits& units_;
  std::vector<ParameterSlice> slices_;
  std::unique_ptr<dist_optim::ShadowLeaves> leaves_;
};

}  // namespace weft::sharded

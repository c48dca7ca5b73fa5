// FullyShardedOptimizer: the optimizer of a FullyShardedDataParallel, with a state that checkpoints save and
// that continues on another number of ranks.
//
//   sharded::FullyShardedOptimizer optimizer(fsdp, torch::optim::AdamWOptions(3e-4));
//   ...
//   optimizer.zero_grad();
//   loss.backward();
//   optimizer.step();
//
// A step changes what this rank has of the parameters, and runs no collective. Parameter groups are those of
// the spec, by the names of the module's parameters. One of LibTorch's optimizers over fsdp.parameters() has
// the same results, but no state that can be split anew. Not thread-safe.
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
  // The module outlives the optimizer. invalid_argument: an optimizer that does not step each element by
  // itself, or a parameter group without a parameter.
  FullyShardedOptimizer(const ShardedModule& module, dist_optim::OptimizerSpec spec)
      : FullyShardedOptimizer(module.units(), std::move(spec)) {}
  // Of the stages of a pipeline: GroupPipeline::sharded().
  FullyShardedOptimizer(const ShardedUnits& units, dist_optim::OptimizerSpec spec);

  // A parameter without a gradient is left alone.
  void step();
  void zero_grad(bool set_to_none = true);

  // Of a parameter group, by its prefix; "" is all others. Without a group: of all groups. not_found: no such
  // group.
  double learning_rate(const std::string& group = {}) const { return leaves_->learning_rate(group); }
  void set_learning_rate(double rate, const std::optional<std::string>& group = {}) {
    leaves_->set_learning_rate(rate, group);
  }

  // After ShardedModule::set_group(): steps the new parts. Learning rates stay; momentum and the like start
  // at zero, unless take_from() follows.
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

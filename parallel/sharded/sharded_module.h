// ShardedModule: a module whose parameters are split over the ranks of a group. The part of a
// FullyShardedDataParallel that does not depend on the module's type.
#pragma once

#include <weft/parallel/sharded/block.h>
#include <weft/parallel/sharded/options.h>
#include <weft/parallel/sharded/sharded_units.h>

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace weft::sharded {

class UnitRunner;

enum class Changes : std::uint8_t { lost, kept };  // of whole parameters

class WEFT_EXPORT ShardedModule {
 public:
  // On all ranks of the group, and of Options::replicas; blocks. The parameters and buffers begin with the
  // values of rank 0; their memory becomes contiguous. invalid_argument: no such block or ignored name, a
  // block whose forward cannot be observed or that is ignored, blocks within each other, no parameters, or a
  // module that is split already.
  // failed_precondition: the ranks have different modules. unsupported: parameters on several devices.
  ShardedModule(const collectives::Group& group, std::shared_ptr<torch::nn::Module> module, Options options);
  ShardedModule(const ShardedModule&) = delete;
  ShardedModule& operator=(const ShardedModule&) = delete;
  // The module's parameters have no elements any more. If an exception destroys this object, the groups are
  // aborted.
  virtual ~ShardedModule();

  // On all ranks of the new group, between iterations or after one has failed: splits the parameters over
  // other ranks in place. replicas: as in Options, if and only if they were given there (invalid_argument).
  // Parts and leaves are new, gradients are dropped. The parts have zeros: give them values by add_to(), from
  // a checkpoint or by an elastic::sharded_part(). Then FullyShardedOptimizer::set_group(). If the old group
  // has not failed, it is aborted.
  void set_group(const collectives::Group& group, const std::optional<collectives::Group>& replicas = {});

  // What this rank has of the parameters that require grad, for its optimizer: one-dimensional leaves whose
  // gradients are the averages over the ranks. An optimizer that steps each element by itself (SGD, Adam,
  // AdamW, RMSprop, Adagrad) has the results of one without sharding.
  std::vector<at::Tensor> parameters() const;
  // The same by name, "layers.0.weight[128:256]": elements 128 to 255 of the flattened parameter.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  // The parts with what they are parts of, for a FullyShardedOptimizer.
  const ShardedUnits& units() const;
  // The parts of all parameters, the ignored parameters and the buffers, for a checkpoint (training_state.h).
  void add_to(SlicedState& state, const std::string& prefix = "model/") const;

  // Scales the gradients of all ranks to this norm of all of them together, if they have more: also of the
  // ranks over which parameters are split (tensor_parallel/split.h). Returns the norm before. On all ranks,
  // after backward. norm_type: p, positive (invalid_argument); infinity is the largest absolute value. A norm
  // that is not finite multiplies the gradients.
  double clip_grad_norm(double max_norm, double norm_type = 2);

  // As long as the guard lives, all parameters are whole on every rank: to read them, to evaluate, or to
  // change them. On all ranks, between iterations (failed_precondition). With mixed precision the values are
  // rounded; add_to() has those of the parts. With Changes::kept each rank's part gets the elements that this
  // rank has changed by the end of the guard: change them equally on all ranks. The other parts keep their
  // bits, also with mixed precision.
  class WEFT_EXPORT Gathered {
   public:
    Gathered(std::shared_ptr<UnitRunner> runner, Changes changes);
    ~Gathered();
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;

   private:
    const std::shared_ptr<UnitRunner> runner_;
    const Changes changes_;
  };
  [[nodiscard]] Gathered gather(Changes changes = Changes::lost) const { return {runner_, changes}; }

  // The backward of a forward that runs while the guard lives reduces nothing: this rank keeps the whole
  // gradients of all units, also beyond zero_grad(). The next backward of a forward outside adds its own and
  // reduces the sum. On all ranks for the same forwards (failed_precondition in backward). A backward reaches
  // forwards of one kind (failed_precondition).
  class WEFT_EXPORT NoSync {
   public:
    explicit NoSync(std::shared_ptr<UnitRunner> runner);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    const std::shared_ptr<UnitRunner> runner_;
    const bool before_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(runner_); }

  const collectives::Group& group() const;  // of this object alone
  std::size_t bytes() const;                // of parts, their gradients, and buffers, on this rank

 protected:
  // A forward of the module; without end_forward() an exception has ended it.
  class WEFT_EXPORT ForwardScope {
   public:
    explicit ForwardScope(const ShardedModule& module);
    ~ForwardScope();
    ForwardScope(const ForwardScope&) = delete;
    ForwardScope& operator=(const ForwardScope&) = delete;

   private:
    const ShardedModule& module_;
  };
  void watch(const at::Tensor& output);
  void end_forward();
  std::optional<at::ScalarType> input_type() const;  // for floating-point inputs

 private:
  class Entries;

  const Options options_;
  const std::shared_ptr<torch::nn::Module> module_;
  torch::OrderedDict<std::string, at::Tensor> ignored_;  // parameters, by all their names
  const int exceptions_ = std::uncaught_exceptions();
  std::shared_ptr<UnitRunner> runner_;
  std::unique_ptr<Entries> entries_;
};

}  // namespace weft::sharded

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

enum class Changes : std::uint8_t { lost, kept };  // the changes made while a Gathered exists

// What ShardedModule::gather() makes whole.
struct GatherOptions {
  Changes changes = Changes::lost;
  // Patterns for the names of blocks, as Options::block. An empty pattern is for the parameters outside of
  // all blocks. No patterns: all parameters.
  std::vector<std::string> blocks = {};
  // The only rank of the group that gets the parameters; on the others they remain without elements. nullopt:
  // all ranks.
  std::optional<int> rank = {};
};

class WEFT_EXPORT ShardedModule {
 public:
  // All ranks of the group and of Options::replicas call the constructor, which blocks. The parameters and
  // buffers get the values of rank 0; their memory becomes contiguous. invalid_argument: no such block or
  // ignored name, a pattern of Options::precision_of that matches nothing, a block whose forward cannot be
  // observed or that is ignored, blocks within each other, no parameters, or a module that is split already.
  // failed_precondition: the ranks have different modules. unsupported: parameters on several devices.
  ShardedModule(const collectives::Group& group, std::shared_ptr<torch::nn::Module> module, Options options);
  ShardedModule(const ShardedModule&) = delete;
  ShardedModule& operator=(const ShardedModule&) = delete;
  // Afterwards the module's parameters have no elements. If an exception destroys this object, the groups are
  // aborted.
  virtual ~ShardedModule();

  // Splits the parameters over other ranks, in place. All ranks of the new group call it, between iterations
  // or after an iteration has failed. replicas: set it if and only if Options::replicas was set
  // (invalid_argument). The parts and leaves are new tensors, and gradients are dropped. The parts are zero:
  // load a checkpoint into them (add_to(), Checkpoints::load()), or use an elastic::sharded_part(). Then call
  // FullyShardedOptimizer::set_group(). If the old group has not failed, it is aborted. Afterwards, the same
  // parameters require grad as on rank 0.
  void set_group(const collectives::Group& group, const std::optional<collectives::Group>& replicas = {});

  // This rank's parts of the parameters, for its optimizer: one-dimensional leaves whose gradients are
  // averaged over the ranks. An elementwise optimizer (SGD, Adam, AdamW, RMSprop, Adagrad) has the same
  // results as without sharding. The part of a parameter that does not require grad gets no gradient. A
  // parameter may begin or cease to require grad between iterations; all ranks must make the same changes.
  std::vector<at::Tensor> parameters() const;
  // The same by name, "layers.0.weight[128:256]": elements 128 to 255 of the flattened parameter.
  torch::OrderedDict<std::string, at::Tensor> named_parameters() const;
  // The parts and their parameters, for a FullyShardedOptimizer.
  const ShardedUnits& units() const;
  // The parts of all parameters, the ignored parameters and the buffers, for a checkpoint (training_state.h).
  void add_to(SlicedState& state, const std::string& prefix = "model/") const;

  // If the norm of the gradients of all ranks together exceeds max_norm, scales the gradients so that their
  // norm is max_norm. The norm includes the ranks over which parameters are split by tensor parallel
  // (tensor_parallel/split.h). Returns the norm before scaling. All ranks call it after backward. norm_type:
  // p, positive (invalid_argument); infinity: the largest absolute value. A norm that is not finite also
  // scales the gradients.
  double clip_grad_norm(double max_norm, double norm_type = 2);

  // While the guard exists, the parameters that GatherOptions names are whole, so that the program can read
  // them, evaluate, or change them. All ranks create and destroy it with equal options, between iterations
  // (failed_precondition on all ranks). invalid_argument: a pattern matches no block, there is no such rank,
  // or changes on one rank are to be kept. A rank needs memory for what it gathers, and with Changes::kept
  // for a copy of its part. While one rank has gathered parameters, there are no forwards, backwards or other
  // gathers. With mixed precision the values are rounded; add_to() has the exact values. With Changes::kept,
  // elements that this rank has changed are copied into its part when the guard is destroyed: make the same
  // changes on all ranks. Elements that have not changed keep their bits, also with mixed precision: a value
  // that is written and equals the rounded one is no change. A step of an optimizer changes the other
  // elements. After torch::load() into the module, all elements are the loaded ones, unrounded; with mixed
  // precision they are valid when the guard has been destroyed. Without a guard, torch::load() throws. If the
  // program has given a parameter memory of another type or of other sizes, the next forward or gather()
  // fails on all ranks.
  class WEFT_EXPORT Gathered {
   public:
    Gathered(const ShardedModule& module, const GatherOptions& options);
    ~Gathered();
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;

   private:
    struct Kept;
    const std::unique_ptr<const Kept> kept_;
  };
  [[nodiscard]] Gathered gather(Changes changes = Changes::lost) const {
    return {*this, GatherOptions{.changes = changes}};
  }
  [[nodiscard]] Gathered gather(const GatherOptions& options) const { return {*this, options}; }

  // If a forward runs while the guard exists, its backward reduces no gradients: this rank keeps the whole
  // gradients of all units, also after zero_grad(). The next backward of a forward without the guard adds its
  // gradients and reduces the sum. All ranks must use the guard for the same forwards, and one backward must
  // not reach forwards with and without the guard; otherwise backward fails with failed_precondition.
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

  const std::vector<std::string>& blocks() const { return blocks_; }  // their names, in the module's order
  const collectives::Group& group() const;                            // used only by this object
  std::size_t bytes() const;  // of parts, their gradients, and buffers, on this rank

 protected:
  // A forward of the module. If the scope is destroyed before end_forward(), an exception has ended the
  // forward: if there are several ranks, the groups are aborted, so that no rank waits for this one.
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

  std::vector<std::size_t> units_in(const GatherOptions& options) const;

  const Options options_;
  const std::shared_ptr<torch::nn::Module> module_;
  torch::OrderedDict<std::string, at::Tensor> ignored_;  // parameters, by all their names
  std::vector<std::string> blocks_;
  const int exceptions_ = std::uncaught_exceptions();
  std::shared_ptr<UnitRunner> runner_;
  std::unique_ptr<Entries> entries_;
};

}  // namespace weft::sharded

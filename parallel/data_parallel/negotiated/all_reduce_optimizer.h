// AllReduceOptimizer: a local optimizer whose gradients are averaged over a process group while backward
// computes them. The counterpart of Horovod's DistributedOptimizer.
//
//   auto model = std::make_shared<Net>();
//   torch::optim::SGD sgd(model->parameters(), 0.01);
//   training::broadcast_parameters(group, *model, 0);
//   training::broadcast_optimizer_state(group, sgd, 0);
//   auto reduction = data_parallel::NegotiatedReduction::make(agent, group);
//   data_parallel::AllReduceOptimizer optimizer(reduction, sgd, *model);
//   for (auto& batch : *loader) {
//     optimizer.zero_grad();
//     loss_of(*model, batch).backward();   // starts an all-reduce for each gradient that is complete
//     optimizer.step();                    // waits for them, then sgd.step()
//   }
//
// The module may be used in any way: no forward is wrapped, and ranks may reach parameters in different
// orders. For a parameter that this rank's backward does not reach, the rank contributes zero in step(), and
// gets the average. If no rank reaches the parameter, its gradient becomes zero. The parameters are in host
// memory or on the devices of the reduction. A rank without further batches calls reduction->join()
// (negotiated_reduction.h). (dist_optim::DistributedOptimizer is another class: it steps parameters of other
// agents behind RRefs.)
//
// The program may freeze and unfreeze parameters between two steps, on all ranks: each step compares which
// parameters require grad. The gradient of a frozen parameter does not change.
//
// All ranks make the same calls with equal options. The wrapped optimizer and the module's parameters must
// outlive the AllReduceOptimizer. One thread uses it; its hooks run on threads of the engine. Errors: those
// of NegotiatedReduction, and failed_precondition as the functions below describe.
#pragma once

#include <weft/parallel/data_parallel/negotiated/negotiated_reduction.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::data_parallel {

// How gradients are accumulated and reduced.
struct AllReduceOptimizerOptions {
  collectives::ReduceOp op = collectives::ReduceOp::avg;  // or sum
  // The number of backwards whose gradients are accumulated on this rank before they are reduced. The
  // gradient is the sum over these backwards: scale the loss if you need the mean.
  int backward_passes_per_step = 1;
  // Splits the division of avg: gradients are divided by this factor before the sum over the ranks, and the
  // sum is divided by size / factor.
  double gradient_predivide_factor = 1;
  // true: sparse gradients are converted to dense ones before the reduction. false: their rows are gathered,
  // and the sum is sparse. A parameter must have sparse gradients on all ranks or on none. A rank that does
  // not reach a parameter contributes a zero. This zero is sparse if the parameter belongs to an Embedding or
  // EmbeddingBag with the option `sparse`, or had a sparse gradient before.
  bool sparse_as_dense = false;
  // Each entry has the names of some parameters, whose gradients are reduced in one launch. The planner
  // decides how the gradients of all other parameters are fused.
  std::vector<std::vector<std::string>> groups = {};
  // The type in which dense gradients are sent: float16, bfloat16 or, for gradients in float64, float32
  // (hooks/cast_hook.h). The gradients themselves keep their type.
  std::optional<at::ScalarType> compression = {};
  // Combine the ranks' steps by Adasum (hooks/adasum_hook.h) instead of averaging their gradients: step()
  // runs the optimizer with this rank's gradients, and then combines the ranks' changes of each parameter.
  // The gradients and the optimizer's state stay those of this rank: clip gradients before step(). With
  // `adasum`, synchronize() and skip_synchronize() fail with failed_precondition. The number of ranks must be
  // a power of two, all parameters must be on one device, op, gradient_predivide_factor and groups must have
  // their defaults, and no rank may call join().
  bool adasum = false;
  std::string prefix = "gradient.";  // of the names in the reduction; differs between optimizers
};

class WEFT_EXPORT AllReduceOptimizer {
 public:
  // Reduces the optimizer's parameters that require grad; the module gives their names. With `adasum` the
  // constructor creates a group, so all ranks must call it at the same time. invalid_argument: a parameter is
  // not in the module, or an option is out of range.
  AllReduceOptimizer(std::shared_ptr<NegotiatedReduction> reduction, torch::optim::Optimizer& optimizer,
                     const torch::nn::Module& module, AllReduceOptimizerOptions options);
  AllReduceOptimizer(std::shared_ptr<NegotiatedReduction> reduction, torch::optim::Optimizer& optimizer,
                     const torch::nn::Module& module);
  ~AllReduceOptimizer();
  AllReduceOptimizer(const AllReduceOptimizer&) = delete;
  AllReduceOptimizer& operator=(const AllReduceOptimizer&) = delete;

  // Reduces the gradients that are not in flight yet, and waits for all. Afterwards the gradients are the
  // averages. To clip them, call synchronize(), clip, and then step() within skip_synchronize().
  // failed_precondition: a gradient was replaced while it was reduced; on all ranks: the ranks have frozen or
  // unfrozen different parameters.
  void synchronize();
  // synchronize(), then the step of the wrapped optimizer, without a closure. failed_precondition:
  // synchronize() was called since the last step, without skip_synchronize().
  void step();
  // failed_precondition while gradients are in flight: between backward and step() or synchronize().
  void zero_grad(bool set_to_none = true);

  // While this guard exists, step() does not synchronize.
  class WEFT_EXPORT SkipSynchronize {
   public:
    explicit SkipSynchronize(AllReduceOptimizer& optimizer) : optimizer_(optimizer) {
      optimizer_.synchronizes_ = false;
    }
    ~SkipSynchronize() { optimizer_.synchronizes_ = true; }
    SkipSynchronize(const SkipSynchronize&) = delete;
    SkipSynchronize& operator=(const SkipSynchronize&) = delete;

   private:
    AllReduceOptimizer& optimizer_;
  };
  [[nodiscard]] SkipSynchronize skip_synchronize() { return SkipSynchronize(*this); }

 private:
  class Gradients;
  class Deltas;
  const std::shared_ptr<Gradients> gradients_;
  const std::unique_ptr<Deltas> deltas_;  // null without adasum
  torch::optim::Optimizer& optimizer_;
  bool synchronizes_ = true, synchronized_ = false;
};

}  // namespace weft::data_parallel

// AllReduceOptimizer: a local optimizer whose gradients are averaged over a process group while backward
// computes them. The counterpart of Horovod's DistributedOptimizer.
//
//   auto model = std::make_shared<Net>();
//   torch::optim::SGD sgd(model->parameters(), 0.01);
//   data_parallel::broadcast_parameters(group, *model, 0);
//   data_parallel::broadcast_optimizer_state(group, sgd, 0);
//   auto reduction = data_parallel::NegotiatedReduction::make(agent, group);
//   data_parallel::AllReduceOptimizer optimizer(reduction, sgd, *model);
//   for (auto& batch : *loader) {
//     optimizer.zero_grad();
//     loss_of(*model, batch).backward();   // starts an all-reduce for each gradient that is complete
//     optimizer.step();                    // waits for them, then sgd.step()
//   }
//
// The module may be used in any way: no forward is wrapped, and ranks may reach parameters in different
// orders. A parameter that this rank does not reach contributes zero in step(), and gets the average; if no
// rank reaches it, its gradient becomes zero. (dist_optim::DistributedOptimizer is another class: it steps
// parameters of other agents behind RRefs.)
//
// All ranks make equal calls with equal options. The optimizer and the module's parameters outlive it. It is
// used by one thread; hooks run on threads of the engine. Errors: those of NegotiatedReduction, and
// failed_precondition as the functions below describe.
#pragma once

#include <weft/parallel/data_parallel/negotiated/negotiated_reduction.h>

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <string>
#include <vector>

namespace weft::data_parallel {

struct AllReduceOptimizerOptions {
  collectives::ReduceOp op = collectives::ReduceOp::avg;  // or sum
  // Backwards whose gradients are accumulated on this rank before they are reduced. The gradient is their
  // sum: the program scales the loss.
  int backward_passes_per_step = 1;
  // Splits the division of avg: gradients are divided by this factor before the sum over the ranks, and by
  // size / factor after it.
  double gradient_predivide_factor = 1;
  // Sparse gradients become dense. Off: a sparse gradient is failed_precondition.
  bool sparse_as_dense = false;
  // Parameters, by name, whose gradients are reduced in one launch each. Parameters that are not named are
  // reduced as the planner fuses them.
  std::vector<std::vector<std::string>> groups = {};
  std::string prefix = "gradient.";  // of the names in the reduction: one for each optimizer that shares it
};

class WEFT_EXPORT AllReduceOptimizer {
 public:
  // The parameters are those of the optimizer that require grad; the module gives their names.
  // invalid_argument: the module has no name for one of them, or an option is out of range.
  AllReduceOptimizer(std::shared_ptr<NegotiatedReduction> reduction, torch::optim::Optimizer& optimizer,
                     const torch::nn::Module& module, AllReduceOptimizerOptions options);
  AllReduceOptimizer(std::shared_ptr<NegotiatedReduction> reduction, torch::optim::Optimizer& optimizer,
                     const torch::nn::Module& module);
  ~AllReduceOptimizer();
  AllReduceOptimizer(const AllReduceOptimizer&) = delete;
  AllReduceOptimizer& operator=(const AllReduceOptimizer&) = delete;

  // Reduces the gradients that are not in flight yet, and waits for all. Afterwards the gradients are the
  // averages: the place to clip them, with skip_synchronize() around step(). failed_precondition: a gradient
  // was replaced while it was reduced.
  void synchronize();
  // synchronize(), then the step of the wrapped optimizer, without a closure. failed_precondition:
  // synchronize() was called since the last step, without skip_synchronize().
  void step();
  // failed_precondition while gradients are in flight: between backward and step() or synchronize().
  void zero_grad(bool set_to_none = true);

  // While it lives, step() does not synchronize.
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
  const std::shared_ptr<Gradients> gradients_;
  torch::optim::Optimizer& optimizer_;
  bool synchronizes_ = true, synchronized_ = false;
};

}  // namespace weft::data_parallel

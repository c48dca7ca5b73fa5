// OptimizerInBackward: steps each parameter of a replica during backward, as soon as its gradient is
// averaged.
//
//   data_parallel::OptimizerInBackward optimizer(ddp, [](const at::Tensor& parameter) {
//     return std::make_unique<torch::optim::AdamW>(std::vector{parameter}, torch::optim::AdamWOptions(1e-3));
//   });
//   ...
//   loss.backward();   // steps; the gradients are undefined afterwards
//
// The steps of one bucket overlap with the reduction of the next ones, and gradients are not kept until the
// end. The results equal those of one optimizer that steps all parameters after backward, if the gradients
// are undefined before each backward. Parameters are not stepped within no_sync(), in a pass, or on a rank
// without a batch in a join. The program cannot clip gradients by their norm or test them for infinite
// values, because each gradient is used at once. If a reduction fails, some parameters may have been stepped
// already. Then call Replica::set_group() on all ranks: it copies the parameters of rank 0 to the others.
//
// With a communication hook, MixedPrecision::parameters or sparse gradients, all steps run at the end of
// backward. Ignored parameters are not stepped. The counterpart of PyTorch's _apply_optimizer_in_backward.
// Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/replica.h>

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <memory>
#include <vector>

namespace weft::data_parallel {

class WEFT_EXPORT OptimizerInBackward {
 public:
  // make: creates an optimizer of one parameter. All ranks construct the object, between iterations. The
  // replica must outlive the OptimizerInBackward, and can have only one. keeps_gradients: false: a step makes
  // the gradient undefined; true: the gradient is kept after the step.
  using Make = std::function<std::unique_ptr<torch::optim::Optimizer>(const at::Tensor& parameter)>;
  OptimizerInBackward(Replica& replica, const Make& make, bool keeps_gradients = false);
  ~OptimizerInBackward();
  OptimizerInBackward(const OptimizerInBackward&) = delete;
  OptimizerInBackward& operator=(const OptimizerInBackward&) = delete;

  // The optimizers in the order of Replica::parameter_names(). The program may change their options, such as
  // the learning rate.
  const std::vector<std::unique_ptr<torch::optim::Optimizer>>& optimizers() const { return optimizers_; }

  // Save and load the states of all optimizers. Call these between iterations.
  void save(torch::serialize::OutputArchive& archive) const;
  void load(torch::serialize::InputArchive& archive);

 private:
  Replica& replica_;
  const std::vector<at::Tensor> parameters_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
};

}  // namespace weft::data_parallel

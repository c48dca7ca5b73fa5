// StepTarget: the values that a OwnedParameters steps, with their optimizer. They are a module's parameters
// (ShadowLeaves) or the rows of an embedding's shard (RowTarget).
//
// Owner: OwnedParameters, or a stage of a pipeline. Not thread-safe: the owner serializes all calls, and
// calls step() only while no thread reads the parameters.
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/rpc/core/error.h>

#include <optional>
#include <string>
#include <vector>

namespace weft::dist_optim {

class WEFT_EXPORT StepTarget {
 public:
  virtual ~StepTarget() = default;

  // The optimizer, with its options.
  virtual const OptimizerSpec& spec() const = 0;
  // Throws the errors of step(): `invalid_argument`, which names the parameter.
  virtual void check(const Gradients& gradients) const = 0;
  // One step with exactly these gradients; a parameter without a gradient is unchanged. It checks the
  // gradients first, so that a refused step has changed nothing.
  virtual void step(const Gradients& gradients) = 0;
  // The next steps change these tensors instead of the parameters. They have the parameters' shapes.
  virtual void move_to(const std::vector<at::Tensor>&) {}

  // The optimizer's rates and state. `failed_precondition` if the target's rate and state are set and saved
  // elsewhere. The rows of an embedding are such a target.
  virtual double learning_rate(const std::string&) const { refuse(); }
  virtual void set_learning_rate(double, const std::optional<std::string>&) { refuse(); }
  virtual OptimizerState state() const { refuse(); }
  virtual void set_state(const OptimizerState&) { refuse(); }
  virtual void check_state(const OptimizerState&) const { refuse(); }  // fails as set_state() would

 private:
  [[noreturn]] static void refuse() {
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "the rows of an embedding keep their optimizer's rate and state: call the "
                     "ShardedEmbedding's set_learning_rate(), save() and load()");
  }
};

}  // namespace weft::dist_optim

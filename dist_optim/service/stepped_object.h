// SteppedObject: an object behind an RRef that optimizers step although it is not a torch::nn::Module. It
// supplies its own StepTarget. The shards of an embedding are such objects.
//
// Owner: the agent on which the object lives, behind an RRef. Thread-safety: make_step_target() is called in
// the object's turn.
#pragma once

#include <weft/dist_optim/local/owned_parameters.h>

#include <memory>

namespace weft::dist_optim {

class WEFT_EXPORT SteppedObject {
 public:
  virtual ~SteppedObject() = default;
  // self: this object; the target keeps it.
  virtual std::unique_ptr<StepTarget> make_step_target(std::shared_ptr<SteppedObject> self) = 0;
};

// The spec that trainers register for a SteppedObject, which has its own optimizer.
WEFT_EXPORT OptimizerSpec own_optimizer();
// Returns the function with which the object's OwnedParameters makes its target. The function throws
// `invalid_argument` for a spec other than own_optimizer().
WEFT_EXPORT OwnedParameters::MakeTarget target_maker(std::shared_ptr<SteppedObject> object);

}  // namespace weft::dist_optim

// StepOptions: the operations on the gradients of one step before the step applies them. StepDecision: what
// the step then does with all of its objects.
//
// The order is that of a training loop in PyTorch: sum or mean over the passes, division by the loss scale,
// then clipping by value or by the global norm (Pascanu et al. 2013), as torch.nn.utils.clip_grad_value_ and
// clip_grad_norm_ do over the union of all parameters. For each object, its owner computes a StepPart, the
// measurements of its gradients. decide() computes from all parts the action of every object. Both are pure
// functions. The trainer calls decide(). If all objects live on one owner, that owner calls it instead.
//
// Thread-safety: values.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace weft::dist_optim {

struct WEFT_EXPORT StepOptions {
  // Use the mean over the step's passes instead of the sum. The mean includes passes that did not use an
  // object.
  bool mean = false;
  // The factor by which the losses were multiplied (GradScaler). The gradients are divided by it. If
  // at least one owner has a gradient that is not finite, all owners skip the step.
  std::optional<double> loss_scale;
  // At most one of clip_value and clip_norm may be set. Both apply to this trainer's gradients, not to the
  // sum over a synchronous round.
  std::optional<double> clip_value;
  std::optional<double> clip_norm;
  double norm_type = 2;             // p of the norm; infinity is the largest absolute value
  bool error_if_nonfinite = false;  // refuse the step if the norm is not finite

  // `invalid_argument`: an option is out of range.
  void check() const;
};

// The measurements of the gradients on one object.
struct StepPart {
  bool nonfinite = false;  // known only if there is a loss scale
  double norm = 0;         // known only if the norm is clipped
  bool none = false;       // no parameter has a gradient
  // Passes that have a gradient on this object although the trainer does not know that their backward has
  // begun. The elements are indices into StepRequest::unseen.
  std::vector<std::uint32_t> found;
};

struct StepDecision {
  // The action of every object.
  enum class Action : std::uint8_t {
    apply,
    skip,     // the passes end as in a step, and nothing changes
    give_up,  // the step is refused; the passes stay open
  };
  Action action = Action::apply;
  double scale = 1;       // of the gradients, for clipping by norm
  double total_norm = 0;  // before clipping, if the norm is clipped
  // The passes because of which the step is given up. They have no gradient on any object, and the trainer
  // does not know whether their backward has begun. The elements are indices into StepRequest::unseen.
  std::vector<std::uint32_t> missing;
};

// The result of a step.
struct StepResult {
  // false: nothing has changed, because a gradient was not finite, or no object had a gradient
  bool applied = false;
  double total_norm = 0;  // over all objects and before clipping; known if the norm is clipped
  // The version of each object after the step: the modules, then the shards of the embeddings. Empty for
  // ShardedEmbedding::step().
  std::vector<std::uint64_t> versions;
};

// The norm of all gradients, from the norms of the parts. norm_type: the p with which these were computed.
WEFT_EXPORT double combine_norms(const std::vector<double>& norms, double norm_type);
// unseen: the number of passes whose backward has not begun as far as the trainer knows. If one of these
// has no gradient on any object, the step is given up. Otherwise, if no object has a gradient, the step
// is skipped.
WEFT_EXPORT StepDecision decide(const std::vector<StepPart>& parts, const StepOptions& options,
                                std::size_t unseen = 0);

}  // namespace weft::dist_optim

// StepOptions: what is done to the gradients of one step before they are applied, and StepDecision: what
// follows from the gradients of all the objects that the step is over.
//
// The order is that of a training loop in PyTorch: sum or mean over the passes, division by the loss scale,
// then clipping by value or by the global norm (Pascanu et al. 2013), as torch.nn.utils.clip_grad_value_ and
// clip_grad_norm_ do over the union of all parameters. An object reports a StepPart of its own gradients;
// decide() makes of all parts what every object then does. Both are pure functions: whoever holds all parts
// decides, the trainer or, where all objects live with one owner, that owner.
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
  // The mean over the step's passes instead of their sum. A pass counts whether it used an object or not.
  bool mean = false;
  // What the losses were multiplied with (GradScaler). The gradients are divided by it, and where any of
  // them, on any owner, is not finite, the step is skipped everywhere.
  std::optional<double> loss_scale;
  // At most one of the two. Both are of this trainer's gradients, not of the sum over a synchronous round.
  std::optional<double> clip_value;
  std::optional<double> clip_norm;
  double norm_type = 2;             // p of the norm; infinity is the largest absolute value
  bool error_if_nonfinite = false;  // a norm that is not finite refuses the step instead of spoiling it

  // `invalid_argument` where these cannot be meant.
  void check() const;
};

// Of the gradients on one object.
struct StepPart {
  bool nonfinite = false;  // known where a loss scale is given
  double norm = 0;         // known where the norm is clipped
  bool none = false;       // no parameter has a gradient
  // Of the passes whose backward the trainer has not seen begin, by their places: those with a gradient here.
  std::vector<std::uint32_t> found;
};

struct StepDecision {
  // What every object does.
  enum class Action : std::uint8_t {
    apply,
    skip,     // the passes end as in a step, and nothing changes
    give_up,  // the step is refused; the passes stay open
  };
  Action action = Action::apply;
  double scale = 1;       // of the gradients, for clipping by norm
  double total_norm = 0;  // before clipping, where the norm is clipped
  // Of the passes whose backward the trainer has not seen begin, by their places: those with no gradient on
  // any object. The step is given up because of them.
  std::vector<std::uint32_t> missing;
};

// What a step returns.
struct StepResult {
  // false: nothing has changed, since a gradient was not finite or no module had one
  bool applied = false;
  double total_norm = 0;  // over all objects and before clipping; known where the norm is clipped
  // Of each object after the step: the modules, then the shards of the embeddings. A ShardedEmbedding that
  // steps by itself has none.
  std::vector<std::uint64_t> versions;
};

// Over the same p that the parts were measured with.
WEFT_EXPORT double combine_norms(const std::vector<double>& norms, double norm_type);
// unseen: how many of the passes have a backward that the trainer has not seen begin. If one of these has no
// gradient on any object, the step is given up. Otherwise a step without gradients is skipped.
WEFT_EXPORT StepDecision decide(const std::vector<StepPart>& parts, const StepOptions& options,
                                std::size_t unseen = 0);

}  // namespace weft::dist_optim

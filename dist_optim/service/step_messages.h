// The messages between a trainer and the owners in a step. Thread-safety: values.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/dist_optim/local/step_options.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <vector>

namespace weft::dist_optim {

WEFT_CODEC(StepOptions, mean, loss_scale, clip_value, clip_norm, norm_type, error_if_nonfinite)
WEFT_CODEC(StepPart, nonfinite, norm, none, found)
WEFT_CODEC(StepDecision, action, scale, total_norm, missing)

// A trainer's step, as sent to one object.
struct StepRequest {
  std::uint64_t number = 0;  // counts the steps of the trainer's agent
  std::vector<dist_autograd::PassId> passes;
  StepOptions options;
  // Passes whose backward has not begun, as far as the trainer knows.
  std::vector<dist_autograd::PassId> unseen;
  std::string trainer;  // one of the agent's trainers; empty: the agent itself
};
WEFT_CODEC(StepRequest, number, passes, options, unseen, trainer)

// The gradients of one shard's rows in a step. The rows are leaves of the passes on the trainer.
struct StepRows {
  std::vector<dist_autograd::PassId> passes;  // the passes that have looked rows up in the embedding
  at::Tensor ids;                             // [n] int64, each once
  at::Tensor gradients;                       // [n, dimension] float, the sum over the passes
};
WEFT_CODEC(StepRows, passes, ids, gradients)

// The result of a step on one object, if one owner has all objects of the step and decides. The action is
// give_up if another object's part was refused, or if the options' conditions do not hold.
struct StepOutcome {
  StepDecision decision;
  std::uint64_t version = 0;  // of the parameters after the step
};
WEFT_CODEC(StepOutcome, decision, version)

}  // namespace weft::dist_optim

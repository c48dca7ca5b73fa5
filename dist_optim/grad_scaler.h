// GradScaler: the scale of losses in mixed precision, which prevents underflow of small gradients in float16
// (Micikevicius et al. 2018). The rule and the defaults are those of torch.amp.GradScaler.
//
//   dist_optim::GradScaler scaler;
//   co_await pass.backward(scaler.scale(loss));
//   auto result = co_await optimizer.step(pass, {.loss_scale = scaler.factor()});
//   scaler.update(result.applied);
//
// The owners divide the gradients by the factor. If at least one owner has a gradient that is not finite, all
// owners skip the step. The trainer owns the scaler. Thread-safety: a value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::dist_optim {

// The defaults are those of torch.amp.GradScaler.
struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // number of consecutive applied steps after which the factor grows
};

class WEFT_EXPORT GradScaler {
 public:
  // The scaler's state for a checkpoint.
  struct State {
    double factor = 0;
    std::int64_t growth_tracker = 0;
  };

  // `invalid_argument` unless the scale is positive, the growth is more than 1, the backoff is less than 1,
  // and the interval is at least 1.
  explicit GradScaler(GradScalerOptions options = {});

  double factor() const { return state_.factor; }
  at::Tensor scale(const at::Tensor& loss) const;

  // Call it once for each step. If the step was skipped, the factor is multiplied by backoff_factor. After
  // growth_interval consecutive applied steps, the factor is multiplied by growth_factor, unless it would
  // exceed the range of float.
  void update(bool applied);

  const State& state() const { return state_; }  // for a checkpoint
  void set_state(const State& state);            // invalid_argument if it is invalid

 private:
  GradScalerOptions options_;
  State state_;
};

}  // namespace weft::dist_optim

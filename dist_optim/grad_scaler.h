// GradScaler: the scale of losses in mixed precision, where small gradients of float16 would vanish
// (Micikevicius et al. 2018). The rule and the defaults are those of torch.amp.GradScaler.
//
//   dist_optim::GradScaler scaler;
//   co_await pass.backward(scaler.scale(loss));
//   auto result = co_await optimizer.step(pass, {.loss_scale = scaler.factor()});
//   scaler.update(result.applied);
//
// The owners divide the gradients by the factor, and where one of them is not finite, on any owner, the step
// is skipped everywhere. The scaler itself stays with the trainer. Thread-safety: a value.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>

#include <ATen/core/Tensor.h>

namespace weft::dist_optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;
  double backoff_factor = 0.5;
  std::int64_t growth_interval = 2000;  // applied steps in a row after which the factor grows
};

class WEFT_EXPORT GradScaler {
 public:
  // What a checkpoint keeps of it.
  struct State {
    double factor = 0;
    std::int64_t growth_tracker = 0;
  };

  // `invalid_argument` unless the scale is positive, it grows by more than 1, backs off to less than 1, and
  // the interval is at least 1.
  explicit GradScaler(GradScalerOptions options = {});

  double factor() const { return state_.factor; }
  at::Tensor scale(const at::Tensor& loss) const;

  // Once a step. It was skipped: the factor backs off. It was applied: after growth_interval of them in a row
  // the factor grows, unless it would be no float any more.
  void update(bool applied);

  const State& state() const { return state_; }
  void set_state(const State& state);  // invalid_argument where it can be none

 private:
  GradScalerOptions options_;
  State state_;
};

}  // namespace weft::dist_optim

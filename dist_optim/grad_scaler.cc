#include <weft/dist_optim/grad_scaler.h>
#include <weft/dist_optim/local/internal/require.h>

#include <cmath>

namespace weft::dist_optim {

GradScaler::GradScaler(GradScalerOptions options) : options_(options) {
  require(std::isfinite(options.growth_factor) && options.growth_factor > 1, "GradScaler: growth_factor is ",
          options.growth_factor, ", expected a finite number greater than 1");
  require(options.backoff_factor > 0 && options.backoff_factor < 1, "GradScaler: backoff_factor is ",
          options.backoff_factor, ", expected a number between 0 and 1");
  require(options.growth_interval >= 1, "GradScaler: growth_interval is ", options.growth_interval,
          ", expected at least 1");
  set_state({options.init_scale, 0});
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const { return loss.mul(state_.factor); }

void GradScaler::update(bool applied) {
  if (!applied) {
    state_.factor *= options_.backoff_factor;
    state_.growth_tracker = 0;
    return;
  }
  if (++state_.growth_tracker < options_.growth_interval) return;
  const double grown = state_.factor * options_.growth_factor;
  if (std::isfinite(static_cast<float>(grown))) state_.factor = grown;
  state_.growth_tracker = 0;
}

void GradScaler::set_state(const State& state) {
  require(std::isfinite(state.factor) && state.factor > 0, "GradScaler: the scale is ", state.factor,
          ", expected a finite positive number");
  require(state.growth_tracker >= 0, "GradScaler: growth_tracker is ", state.growth_tracker,
          ", expected at least 0");
  state_ = state;
}

}  // namespace weft::dist_optim

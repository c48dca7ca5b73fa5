// Learning-rate schedules: pure functions of the step, counted from 0.
//
//   const auto rate = sequential({linear_warmup(1e-3, 100), cosine(1e-3, 900)}, {100});
//   for (std::uint64_t step = 0; …; ++step) {
//     optimizer.set_learning_rate(rate(step));   // takes effect in order: no need to wait for it
//     co_await optimizer.step(pass);
//   }
//
// A schedule has no state: a checkpoint needs only the step number, and two trainers at the same step have
// the same rate. The formulas are PyTorch's documented closed forms (torch.optim.lr_scheduler). LibTorch's
// own scheduler objects (StepLR, ReduceLROnPlateau) also work: run one over any local optimizer, and pass
// that optimizer's rate to set_learning_rate() (docs/dist_optim.md).
//
// Errors: invalid_argument for invalid numbers. Thread-safety: values; calls are const.
#pragma once

#include <weft/rpc/core/export.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace weft::dist_optim {

// The learning rate of a step.
using Schedule = std::function<double(std::uint64_t step)>;

// The same rate for all steps.
WEFT_EXPORT Schedule constant(double rate);
// From rate·start to rate·end in `steps` steps, linearly, and then rate·end (LinearLR; Goyal et al. 2017).
WEFT_EXPORT Schedule linear(double rate, std::uint64_t steps, double start, double end);
// linear() from rate/steps to rate: the first step is not wasted on a rate of 0.
WEFT_EXPORT Schedule linear_warmup(double rate, std::uint64_t steps);
// rate·gamma^step (ExponentialLR).
WEFT_EXPORT Schedule exponential(double rate, double gamma);
// The rate is multiplied by gamma after every `size` steps (StepLR).
WEFT_EXPORT Schedule step_decay(double rate, std::uint64_t size, double gamma = 0.1);
// The rate is multiplied by gamma at each milestone (MultiStepLR). The milestones ascend.
WEFT_EXPORT Schedule multi_step(double rate, std::vector<std::uint64_t> milestones, double gamma = 0.1);
// rate·(1 − step/steps)^power, and then 0 (PolynomialLR).
WEFT_EXPORT Schedule polynomial(double rate, std::uint64_t steps, double power = 1);
// Half a cosine from rate to minimum in `steps` steps, and then minimum (CosineAnnealingLR, which would rise
// again).
WEFT_EXPORT Schedule cosine(double rate, std::uint64_t steps, double minimum = 0);
// cosine() repeatedly: the first cycle has `first` steps, and each further cycle `multiplier` times as many
// (SGDR, Loshchilov and Hutter 2017; CosineAnnealingWarmRestarts).
WEFT_EXPORT Schedule cosine_restarts(double rate, std::uint64_t first, std::uint64_t multiplier = 1,
                                     double minimum = 0);

// One cycle: the rate rises to `maximum` and falls to almost 0 (Smith and Topin 2018; OneCycleLR).
struct OneCycle {
  double maximum = 0;
  std::uint64_t steps = 0;
  double rising = 0.3;         // the part of the steps in which the rate rises
  double start_divisor = 25;   // starts at maximum / start_divisor
  double final_divisor = 1e4;  // ends at the start divided by final_divisor
  bool linear = false;         // false: half cosines
  bool three_phases = false;   // the rate falls to the start in as many steps as it rises, then to the end
};
WEFT_EXPORT Schedule one_cycle(const OneCycle& shape);

// The schedules one after the other: at each milestone the next schedule begins at its own step 0
// (SequentialLR). The milestones ascend, and there is one milestone fewer than schedules.
WEFT_EXPORT Schedule sequential(std::vector<Schedule> schedules, std::vector<std::uint64_t> milestones);
// rate times the product of the factors, which are schedules with a rate of 1 (ChainedScheduler).
WEFT_EXPORT Schedule chained(double rate, std::vector<Schedule> factors);

}  // namespace weft::dist_optim

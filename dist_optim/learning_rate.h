// Learning-rate schedules: pure functions of the step, counted from 0.
//
//   const auto rate = sequential({linear_warmup(1e-3, 100), cosine(1e-3, 900)}, {100});
//   for (std::uint64_t step = 0; …; ++step) {
//     optimizer.set_learning_rate(rate(step));   // takes effect in order: no need to wait for it
//     co_await optimizer.step(pass);
//   }
//
// A schedule has no state: a checkpoint needs only the step number, and two trainers with the same number
// agree. The formulas are PyTorch's documented closed forms (torch.optim.lr_scheduler), including those of
// LibTorch's C++ API (StepLR, ReduceLROnPlateau) if they are a function of the step. LibTorch's own scheduler
// objects work, too: over any local optimizer, whose rate is then set here (docs/dist_optim.md).
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
// Times gamma after every `size` steps (StepLR).
WEFT_EXPORT Schedule step_decay(double rate, std::uint64_t size, double gamma = 0.1);
// Times gamma at each milestone, which ascend (MultiStepLR).
WEFT_EXPORT Schedule multi_step(double rate, std::vector<std::uint64_t> milestones, double gamma = 0.1);
// rate·(1 − step/steps)^power, and then 0 (PolynomialLR).
WEFT_EXPORT Schedule polynomial(double rate, std::uint64_t steps, double power = 1);
// Half a cosine from rate to minimum in `steps` steps, and then minimum (CosineAnnealingLR, which would rise
// again).
WEFT_EXPORT Schedule cosine(double rate, std::uint64_t steps, double minimum = 0);
// The same repeatedly, each time `multiplier` times as long (SGDR, Loshchilov and Hutter 2017;
// CosineAnnealingWarmRestarts).
WEFT_EXPORT Schedule cosine_restarts(double rate, std::uint64_t first, std::uint64_t multiplier = 1,
                                     double minimum = 0);

// Up to `maximum` and down to almost 0, once (Smith and Topin 2018; OneCycleLR).
struct OneCycle {
  double maximum = 0;
  std::uint64_t steps = 0;
  double rising = 0.3;         // the part of the steps in which the rate rises
  double start_divisor = 25;   // starts at maximum / start_divisor
  double final_divisor = 1e4;  // ends at the start divided by final_divisor
  bool linear = false;         // false: half cosines
  bool three_phases = false;   // down to the start as fast as up, then to the end
};
WEFT_EXPORT Schedule one_cycle(const OneCycle& shape);

// One after the other: the next schedule begins, at its own step 0, at each milestone (SequentialLR). One
// milestone fewer than schedules, ascending.
WEFT_EXPORT Schedule sequential(std::vector<Schedule> schedules, std::vector<std::uint64_t> milestones);
// rate times the product of all, which are factors: schedules with a rate of 1 (ChainedScheduler).
WEFT_EXPORT Schedule chained(double rate, std::vector<Schedule> factors);

}  // namespace weft::dist_optim

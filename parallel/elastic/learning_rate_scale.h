// LearningRateScale: the factor of the learning rate in a training whose batch grows and shrinks with the
// number of workers.
//
//   elastic::LearningRateScale scale{.workers = 4, .warm_up = 500};  // 0.1 is the rate of four workers
//   state.add("scale", scale);
//   ...
//   const double rate = 0.1 * scale.next(group.size());  // in each step
//   for (auto& parameters : optimizer.param_groups()) parameters.options().set_lr(rate);
//   optimizer.step();
//
// The linear scaling rule: N workers have N times the samples of one worker in a step, so the rate is N times
// as high. A warm-up raises it gradually after workers have joined (Goyal et al., "Accurate, Large Minibatch
// SGD", 2017). If workers have gone, the lower rate holds at once.
//
// A value: as a part of the State it is committed, restored and given to workers that join, so that all ranks
// have the same factor, and steps that are made again have the factors of an undisturbed run.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>

#include <cstdint>

namespace weft::elastic {

// In the step of this number, counted from 0, after a change: grows linearly from `from` to `to`, which it
// has after `warm_up` steps. `to`, if that is not greater than `from`.
WEFT_EXPORT double warm_up_factor(double from, double to, std::uint64_t step, std::uint64_t warm_up);

struct LearningRateScale {
  int workers = 1;            // for which the program's rate is meant: their factor is 1
  std::uint64_t warm_up = 0;  // steps after workers have joined

  // Of the steps until now; next() changes it.
  double factor = 1;        // of the latest step
  int present = 0;          // the number of workers in that step; 0: there was no step
  double from = 1;          // the factor before their number has changed
  std::uint64_t steps = 0;  // since then

  // The factor of the next step, which counts. All ranks call it once in each step; with State::step() in the
  // function that applies the step. present_workers: the size of the generation's group. invalid_argument: a
  // number of workers below 1.
  WEFT_EXPORT double next(int present_workers);
};
WEFT_CODEC(LearningRateScale, workers, warm_up, factor, present, from, steps)

}  // namespace weft::elastic

// LearningRateScale: the factor of the learning rate in elastic training, in which the batch grows and
// shrinks with the number of workers.
//
//   elastic::LearningRateScale scale{.workers = 4, .warm_up = 500};  // 0.1 is the rate of four workers
//   state.add("scale", scale);
//   ...
//   const double rate = 0.1 * scale.next(group.size());  // in each step
//   for (auto& parameters : optimizer.param_groups()) parameters.options().set_lr(rate);
//   optimizer.step();
//
// The linear scaling rule: N workers have N times the samples of one worker in a step, so the rate is N times
// as high. After workers have joined, a warm-up raises the rate gradually (Goyal et al., "Accurate, Large
// Minibatch SGD", 2017). After workers have left, the lower rate applies at once.
//
// A value. As a part of the State it is committed, restored and sent to workers that join. So all ranks have
// the same factor, and repeated steps have the same factors as in a run without failures.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>

#include <cstdint>

namespace weft::elastic {

// The factor in step number `step` (from 0) after a change. It grows linearly from `from`, and reaches `to`
// after `warm_up` steps. If `to` is not greater than `from`, it is `to` at once.
WEFT_EXPORT double warm_up_factor(double from, double to, std::uint64_t step, std::uint64_t warm_up);

struct LearningRateScale {
  int workers = 1;            // the number of workers for which the factor is 1
  std::uint64_t warm_up = 0;  // the number of steps of a warm-up

  // The state, which next() changes.
  double factor = 1;        // of the latest step
  int present = 0;          // the number of workers in the latest step; 0: there was no step
  double from = 1;          // the factor before the last change of the number of workers
  std::uint64_t steps = 0;  // the steps since that change

  // Counts a step and returns its factor. All ranks call it once in each step; with State::step(), in the
  // function that applies the step. present_workers: the size of the generation's group. invalid_argument: a
  // number of workers below 1.
  WEFT_EXPORT double next(int present_workers);
};
WEFT_CODEC(LearningRateScale, workers, warm_up, factor, present, from, steps)

}  // namespace weft::elastic

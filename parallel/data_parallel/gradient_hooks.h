// GradientHooks: what LibTorch's engine reports about the gradients of a module's parameters.
//
// Each parameter has a hook on its gradient accumulator, and one on that of its copy in low precision. The
// hooks are removed with this object. Owned by a Reducer. Thread-safe: it does not change once it is made.
#pragma once

#include <weft/parallel/data_parallel/gradient_buckets.h>
#include <weft/parallel/data_parallel/low_precision.h>

#include <functional>
#include <vector>

namespace weft::data_parallel {

class GradientHooks {
 public:
  // On the engine's thread, each time that an accumulator has run. defined: it was given a gradient, and has
  // added it.
  using Accumulated = std::function<void(std::size_t parameter, bool defined)>;
  // low_precision: null if the parameters are used in their own type.
  GradientHooks(std::vector<NamedParameter> parameters, const LowPrecision* low_precision,
                const Accumulated& accumulated);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // failed_precondition: a parameter has changed its dtype or device, and with it its accumulator.
  void check_unchanged() const;
  // By parameter: how many gradients the backward that runs on this thread will compute.
  std::vector<std::size_t> expected() const;

 private:
  struct Source {
    LowPrecision::Accumulator accumulator;
    std::uintptr_t hook;
  };
  const std::vector<NamedParameter> parameters_;
  std::vector<std::vector<Source>> sources_;  // by parameter; the first one is of the parameter itself
};

// Whether a backward runs on this thread; not that of a dist_autograd::Pass.
bool in_backward();
// Whether it runs only for some tensors: torch::autograd::grad(), or backward() with `inputs`.
bool is_partial_backward();

}  // namespace weft::data_parallel

// GradientHooks: reports the gradients of a module's parameters that LibTorch's engine accumulates.
//
// Each parameter that requires grad has a hook on its gradient accumulator, and one on the accumulator of its
// copy in low precision. The destructor removes the hooks. Owned by a Reducer. Not thread-safe.
#pragma once

#include <weft/parallel/data_parallel/internal/gradient_buckets.h>
#include <weft/parallel/data_parallel/low_precision.h>

#include <functional>
#include <vector>

namespace weft::data_parallel {

class GradientHooks {
 public:
  // Called on the engine's thread each time that an accumulator has run. defined: true if the accumulator got
  // a gradient and has added it.
  using Accumulated = std::function<void(std::size_t parameter, bool defined)>;
  // low_precision: null if the parameters are used in their own type.
  GradientHooks(std::vector<NamedParameter> parameters, const LowPrecision* low_precision,
                Accumulated accumulated);
  ~GradientHooks();
  GradientHooks(const GradientHooks&) = delete;
  GradientHooks& operator=(const GradientHooks&) = delete;

  // Adds hooks to the parameters that have begun to require grad, and moves the hooks of the parameters that
  // have another accumulator, for example after torch::load(). Call it while no backward runs.
  void refresh();
  // By parameter: the number of gradients that the backward on this thread will compute.
  std::vector<std::size_t> expected() const;

 private:
  struct Source {
    LowPrecision::Accumulator accumulator;
    std::uintptr_t hook;
  };
  void remove(std::vector<Source>& sources);

  const std::vector<NamedParameter> parameters_;
  const LowPrecision* const low_precision_;
  const Accumulated accumulated_;
  // By parameter; the first is the parameter's own accumulator. Empty: the parameter has never required grad.
  std::vector<std::vector<Source>> sources_;
};

// Whether the backward on this thread executes the node.
bool is_executed(torch::autograd::Node* node);
// Whether a backward of LibTorch's engine runs on this thread. Backwards of a dist_autograd::Pass do not
// count.
bool in_backward();
// Whether the backward on this thread computes the gradients of some tensors only: torch::autograd::grad(),
// or backward() with `inputs`.
bool is_partial_backward();

}  // namespace weft::data_parallel

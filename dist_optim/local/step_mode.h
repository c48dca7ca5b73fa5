// StepMode: how the steps of several trainers on one object's parameters are combined. Every optimizer handle
// must state it.
//
// `synchronous`: one step a round. A round applies the sum of the gradients of all its trainers, each
// computed from the same parameters. `synchronous(n)` gives the number of trainers. Plain `synchronous`
// includes every trainer that is registered on the object when the round closes, so the first trainer may
// step alone: give the number if all must take part from the first step on.
//
// `bounded_staleness(k)`: each step applies at once. A pass reads one immutable version of the parameters, at
// most k steps older than the version that its step changes; a pass that could break the bound waits before
// it first reads (stale synchronous parallel, Ho et al. 2013). `bounded_staleness(0)` admits one trainer at a
// time.
//
// `hogwild`: each step applies at once, in place, and no trainer waits (Hogwild, Recht et al. 2011). A pass
// may read parameters while a step changes them, and its backward may read other values than its forward: its
// gradient then belongs to no single version.
//
// Thread-safety: values.
#pragma once

#include <weft/rpc/core/error.h>

#include <cstdint>
#include <string>

namespace weft::dist_optim {

struct StepMode {
  // The modes, as above.
  enum class Kind : std::uint8_t { synchronous, bounded_staleness, hogwild };

  Kind kind = Kind::synchronous;  // which mode
  // synchronous: the number of trainers; 0: every trainer that is registered. bounded_staleness: the bound k.
  // hogwild: 0.
  std::int32_t count = 0;
  bool mean = false;  // synchronous: the mean over the round's trainers instead of their sum

  friend constexpr bool operator==(const StepMode&, const StepMode&) = default;
};

// The type of `synchronous`.
struct Synchronous {
  bool mean = false;
  // The mode for all registered trainers, or for a given number of trainers. invalid_argument: it is less
  // than 1.
  constexpr operator StepMode() const { return {StepMode::Kind::synchronous, 0, mean}; }
  constexpr StepMode operator()(std::int32_t trainers) const {
    if (trainers < 1) {
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "synchronous(" + std::to_string(trainers) + "): expected at least 1 trainer");
    }
    return {StepMode::Kind::synchronous, trainers, mean};
  }
};
inline constexpr Synchronous synchronous{};
// Synchronous mode with the mean of the trainers' gradients, as in torch.nn.parallel.DistributedDataParallel
// and Horovod. The sum is divided by the number of trainers whose steps are in the round, including trainers
// without gradients.
inline constexpr Synchronous synchronous_mean{true};

constexpr StepMode bounded_staleness(std::int32_t steps) {
  if (steps < 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "bounded_staleness(" + std::to_string(steps) + "): expected at least 0 steps");
  return {StepMode::Kind::bounded_staleness, steps, false};
}

inline constexpr StepMode hogwild{StepMode::Kind::hogwild, 0, false};

// The mode as a program writes it: "bounded_staleness(2)".
inline std::string to_string(const StepMode& mode) {
  switch (mode.kind) {
    case StepMode::Kind::synchronous:
      return (mode.mean ? std::string("synchronous_mean") : std::string("synchronous")) +
             (mode.count == 0 ? "" : "(" + std::to_string(mode.count) + ")");
    case StepMode::Kind::bounded_staleness:
      return "bounded_staleness(" + std::to_string(mode.count) + ")";
    case StepMode::Kind::hogwild:
      return "hogwild";
  }
  return "unknown(" + std::to_string(static_cast<int>(mode.kind)) + ")";
}

// Checks a mode that came from a peer. `invalid_argument` unless it equals one of the modes above.
inline void check(const StepMode& mode) {
  bool known = mode.kind == StepMode::Kind::synchronous || mode.kind == StepMode::Kind::bounded_staleness ||
               (mode.kind == StepMode::Kind::hogwild && mode.count == 0);
  if (!known || mode.count < 0 || (mode.mean && mode.kind != StepMode::Kind::synchronous)) {
    throw rpc::Error(rpc::ErrorKind::invalid_argument, "unknown step mode: " + to_string(mode));
  }
}

}  // namespace weft::dist_optim

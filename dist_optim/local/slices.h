// Slices: ranges of elements of a parameter, each with a separate optimizer (ZeRO-1: every rank steps its
// part of a bucket and keeps only the state of that part; Rajbhandari et al. 2020).
//
//   Parameter mine = slice_of({"bucket0", bucket}, begin, end);
//   ShadowLeaves optimizer({mine}, torch::optim::AdamOptions(1e-3));
//   optimizer.step({{0, gradient.slice(0, begin, end)}});  // writes into the bucket
//
// An elementwise optimizer (OptimizerSpec::is_elementwise) has the same result over slices as over the whole,
// bit for bit; ShadowLeaves refuses others. A slice's state has the slice's size and the name
// PARAMETER[BEGIN:END]/FIELD.
//
// Plain functions over values. The tensor of a slice shares the parameter's storage.
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/rpc/core/export.h>

#include <cstdint>
#include <vector>

namespace weft::dist_optim {

// The elements [begin, end) of the flattened parameter, as a parameter with one dimension. If begin = end,
// the slice is empty, and may step. `invalid_argument`: the parameter is not contiguous, or the range exceeds
// it.
WEFT_EXPORT Parameter slice_of(const Parameter& parameter, std::int64_t begin, std::int64_t end);

// Returns the state for the parameters `to` (whole ones, slices, or both), made of the states of other slices
// or whole parameters of the same names. Use it after the number of ranks has changed, or to save one state
// for all ranks. A parameter that has no state in `from` has none in the result. `invalid_argument` if the
// states are of several optimizers or of one that is not elementwise, if learning rates or step counts
// differ, or if only a part of a parameter in `to` has a state.
WEFT_EXPORT OptimizerState reslice(const std::vector<OptimizerState>& from, const std::vector<Parameter>& to);

}  // namespace weft::dist_optim

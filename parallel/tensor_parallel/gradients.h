// Operations on the gradients of a module of which some parameters are split over the ranks: clipping by the
// global norm, and the search for gradients that are not finite.
//
//   const auto parameters = placements(*model);
//   const std::vector<GradientGroup> over{{mesh.group("tensor")}, {mesh.group("pipeline"), true}};
//   clip_grad_norm(parameters, over, 1.0);
//
// The norm is that of the whole model's gradients: elements that are split count on every rank, those of a
// replicated parameter once. Groups with the same members are the same here, so a parameter may be split over
// one and the norm be reduced over the other. A data parallel group whose gradients are averaged already has
// equal values on all ranks, and must not be listed; one whose ranks have parts of the parameters (FSDP) must
// be, with all_differ. Functions block; all ranks of the groups call them in one order. Thread-safe as Group
// is.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <vector>

namespace weft::tensor_parallel {

// Ranks that have different parts of one model.
struct GradientGroup {
  collectives::Group group;
  // Its ranks have no parameter in common, as the stages of a pipeline; see Placement::counts_elsewhere for
  // one that two stages share. Off: those that Placement::splits does not name are replicated.
  bool all_differ = false;
};

// Scales the gradients of all ranks to this norm of all of them together, if they have more. Returns the norm
// before, the same bits on all ranks. norm_type: p, positive; infinity is the largest absolute value. A
// parameter without a gradient is left out. A norm that is not finite is returned, and multiplies the
// gradients, as in torch::nn::utils::clip_grad_norm_. invalid_argument: norm_type, or a parameter is split
// over a group of several ranks that is not in `over`.
WEFT_EXPORT double clip_grad_norm(const std::vector<Placement>& parameters,
                                  const std::vector<GradientGroup>& over, double max_norm,
                                  double norm_type = 2);

// Divides the gradients by the factor by which the loss was multiplied. False on all ranks of all groups if a
// gradient is not finite on any of them; values are unspecified then. A data parallel group whose ranks have
// no equal gradients must be listed too (data_parallel/unscale.h).
WEFT_EXPORT bool unscale_gradients(const std::vector<Placement>& parameters,
                                   const std::vector<collectives::Group>& over, double factor);

}  // namespace weft::tensor_parallel

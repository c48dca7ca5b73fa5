// Operations on the gradients of a module with some parameters that are split over ranks: clipping by the
// global norm, and unscaling with a test for gradients that are not finite.
//
//   const auto parameters = placements(*model);
//   const std::vector<GradientGroup> over{{mesh.group("tensor")}, {mesh.group("pipeline"), true}};
//   clip_grad_norm(parameters, over, 1.0);
//
// The norm is that of the whole model's gradients: the elements of split parameters count on every rank, and
// those of a replicated parameter count once. Two groups with the same members are equivalent here: a
// parameter may be split over one, and the norm reduced over the other. Do not list a data parallel group
// whose gradients are averaged already, because its ranks have equal values. Do list a group whose ranks have
// parts of the parameters (FSDP), with all_differ. All ranks of the groups call these functions in the same
// order, and the calls block. As thread-safe as Group.
#pragma once

#include <weft/parallel/tensor_parallel/split.h>

#include <vector>

namespace weft::tensor_parallel {

// A group whose ranks have different parts of one model.
struct GradientGroup {
  collectives::Group group;
  // true: the ranks have no parameter in common, such as the stages of a pipeline (for a parameter that two
  // stages share, see Placement::counts_elsewhere). false: parameters that Placement::splits does not list
  // are replicated.
  bool all_differ = false;
};

// If the norm of the gradients of all ranks together exceeds max_norm, scales the gradients so that their
// norm is max_norm. Returns the norm before scaling, with the same bits on all ranks. norm_type: p, positive;
// infinity: the largest absolute value. A parameter without a gradient is ignored. A norm that is not finite
// also scales the gradients, as in torch::nn::utils::clip_grad_norm_. invalid_argument: norm_type is not
// positive, or a parameter is split over a group of several ranks that is not in `over`.
WEFT_EXPORT double clip_grad_norm(const std::vector<Placement>& parameters,
                                  const std::vector<GradientGroup>& over, double max_norm,
                                  double norm_type = 2);

// Divides the gradients by the loss scale `factor`. If at least one rank of the groups has a gradient that is
// not finite, returns false on all of them, and the gradients' values are unspecified. Also list a data
// parallel group whose ranks have different gradients (data_parallel/unscale.h).
WEFT_EXPORT bool unscale_gradients(const std::vector<Placement>& parameters,
                                   const std::vector<collectives::Group>& over, double factor);

}  // namespace weft::tensor_parallel

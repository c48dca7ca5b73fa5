// The state of an optimizer as bytes: momenta, step counts, options. Plain functions over values.
//
// torch::optim::LBFGS cannot be saved while its history is not full: until then its temporary list `al` has
// undefined tensors. archive_of() drops that list, and the next step allocates it again.
#pragma once

#include <weft/rpc/core/export.h>

#include <torch/optim/optimizer.h>

#include <string>

namespace weft::training {

WEFT_EXPORT std::string archive_of(torch::optim::Optimizer& optimizer);
// Loads the bytes into an optimizer of the same type with the same parameters. States that the bytes do not
// contain are kept.
WEFT_EXPORT void load_archive(const std::string& bytes, torch::optim::Optimizer& optimizer);

// Drops that list if the state is one of LBFGS. For code that copies states without archive_of().
WEFT_EXPORT void drop_scratch_memory(torch::optim::OptimizerParamState& state);

}  // namespace weft::training

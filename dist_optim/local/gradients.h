// The parameters on an owner, and the gradients of one step with the parameters that they belong to.
//
// A parameter is identified by its index in the owner's list. A parameter that the step's passes did not use
// has no entry. LibTorch's optimizers leave such a parameter unchanged, while a gradient of zeros would still
// apply weight decay and momentum.
//
// Thread-safety: plain functions over values; tensors given to them are read, never written.
#pragma once

#include <weft/dist_optim/local/step_options.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

namespace torch::nn {
class Module;
}

namespace weft::dist_optim {

// A parameter of the module.
struct Parameter {
  std::string name;  // for messages
  at::Tensor tensor;
  bool slice = false;  // slice_of() made it (slices.h)
};

// Gradients by the index of their parameter. Each has its parameter's shape.
using Gradients = std::map<std::size_t, at::Tensor>;

// The module's parameters that require grad, with their names. A shared parameter occurs once.
WEFT_EXPORT std::vector<Parameter> parameters_of(const torch::nn::Module& module);

// `invalid_argument` unless every tensor is a leaf, no tensor occurs twice and no two tensors share elements
// (a copy on write would separate shared elements).
WEFT_EXPORT void check_parameters(const std::vector<Parameter>& parameters);

// `invalid_argument`, which names the parameter, unless each gradient has its parameter's shape, dtype and
// device, and is dense or, if `sparse` is set, COO.
WEFT_EXPORT void check_gradients(const std::vector<Parameter>& parameters, const Gradients& gradients,
                                 bool sparse);

// Adds `more` to `sum`. Undefined gradients count as absent.
WEFT_EXPORT void add_gradients(Gradients& sum, const Gradients& more);

// Applies the options' mean, loss scale and clipping by value to the gradients of `passes` passes, out of
// place. It does not apply the other options.
WEFT_EXPORT void prepare_gradients(Gradients& gradients, std::size_t passes, const StepOptions& options);
WEFT_EXPORT StepPart measure(const Gradients& gradients, const StepOptions& options);
WEFT_EXPORT void scale_gradients(Gradients& gradients, double scale);

}  // namespace weft::dist_optim

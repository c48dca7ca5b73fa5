// Parameters as an owner knows them, and the gradients of one step: which parameter got which gradient.
//
// A parameter is known by its index in the owner's list; one that the step's passes did not use has no
// entry, and LibTorch's optimizers then leave it alone (not the same as a gradient of zeros: no decay, no
// momentum).
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

// By index of the parameter; each in its parameter's shape.
using Gradients = std::map<std::size_t, at::Tensor>;

// The module's parameters that require grad, by name, a shared one once.
WEFT_EXPORT std::vector<Parameter> parameters_of(const torch::nn::Module& module);

// `invalid_argument` unless every tensor is a leaf of its own: no tensor twice, no two that share elements
// (copying one of those on write would part them).
WEFT_EXPORT void check_parameters(const std::vector<Parameter>& parameters);

// `invalid_argument`, naming the parameter, unless each gradient has its parameter's shape, dtype and device,
// and is dense or, where `sparse` says so, COO.
WEFT_EXPORT void check_gradients(const std::vector<Parameter>& parameters, const Gradients& gradients,
                                 bool sparse);

// Adds `more` to `sum`. Undefined gradients count as absent.
WEFT_EXPORT void add_gradients(Gradients& sum, const Gradients& more);

// The options' mean, loss scale and clipping by value, out of place; what is left is as the options have it.
WEFT_EXPORT void prepare_gradients(Gradients& gradients, std::size_t passes, const StepOptions& options);
WEFT_EXPORT StepPart measure(const Gradients& gradients, const StepOptions& options);
WEFT_EXPORT void scale_gradients(Gradients& gradients, double scale);

}  // namespace weft::dist_optim

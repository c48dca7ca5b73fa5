// OptimizerState: what an optimizer has learnt about one object's parameters, as plain tensors by name, so
// that it may come from a peer (LibTorch's own archives are TorchScript files, which must not).
//
// Tensors are named PARAMETER/FIELD ("conv.weight/exp_avg"), the fields being those of LibTorch's
// ...ParamState; a count ("step") is a 0-d tensor of int64. Learning rates are by the prefix of their
// parameter group, "" for what is in none. Other options are not state: they are the spec's.
//
// Thread-safety: values.
#pragma once

#include <weft/dist_optim/local/gradients.h>
#include <weft/rpc/core/export.h>

#include <map>
#include <string>

namespace torch::optim {
class Optimizer;
}

namespace weft::dist_optim {

struct OptimizerState {
  std::string optimizer;  // OptimizerSpec's name
  std::map<std::string, double> learning_rates;
  std::map<std::string, at::Tensor> tensors;
};

// Adds copies of what `from` (an optimizer of that name) knows of the tensor `leaf`.
WEFT_EXPORT void read_state(const std::string& name, const torch::optim::Optimizer& from,
                            const at::Tensor& leaf, const std::string& parameter, OptimizerState& to);
// Gives copies of it to `to`; returns how many tensors were the parameter's. `invalid_argument` where a field
// is missing or has another shape, dtype or layout than this optimizer gives it.
WEFT_EXPORT std::size_t write_state(const OptimizerState& from, const std::string& parameter,
                                    const at::Tensor& leaf, torch::optim::Optimizer& to);

}  // namespace weft::dist_optim

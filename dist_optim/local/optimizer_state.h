// OptimizerState: the state of an optimizer for one object's parameters, as plain tensors by name. LibTorch's
// own archives are not used: they are TorchScript files, which must not be read from a peer, and a state may
// come from a peer.
//
// Tensors are named PARAMETER/FIELD ("conv.weight/exp_avg"), with the fields of LibTorch's ...ParamState; a
// count ("step") is a 0-d tensor of int64. Learning rates are stored by the prefix of their parameter group,
// "" for parameters in no group. Other options are not state: they belong to the spec.
//
// Thread-safety: values.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/export.h>
#include <weft/rpc/tensor/tensor_codec.h>

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
WEFT_CODEC(OptimizerState, optimizer, learning_rates, tensors)

// Adds to `to`, under the name `parameter`, copies of the state that the optimizer `from` has for the tensor
// `leaf`. name: OptimizerSpec's name of `from`.
WEFT_EXPORT void read_state(const std::string& name, const torch::optim::Optimizer& from,
                            const at::Tensor& leaf, const std::string& parameter, OptimizerState& to);
// Copies the state of `parameter` in `from` to the optimizer `to`, as the state of the tensor `leaf`. Returns
// the number of tensors of that state. `invalid_argument`: a field is missing, or has another shape, dtype or
// layout than the optimizer uses.
WEFT_EXPORT std::size_t write_state(const OptimizerState& from, const std::string& parameter,
                                    const at::Tensor& leaf, torch::optim::Optimizer& to);

}  // namespace weft::dist_optim

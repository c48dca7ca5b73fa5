// ModuleSnapshot: one module of an owner at one moment. Thread-safety: a value.
#pragma once

#include <weft/dist_autograd/module/remote_module.h>
#include <weft/dist_optim/local/optimizer_spec.h>
#include <weft/dist_optim/local/optimizer_state.h>
#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <cstdint>

namespace weft::dist_optim {

WEFT_CODEC(ParameterGroup, prefix, options)
WEFT_CODEC(OptimizerSpec, name, options, groups)

// The module's parameters and buffers, and its optimizer's state, all of one version.
struct ModuleSnapshot {
  std::uint64_t object = 0;  // its number at its owner, as attach() returns it; 0: no optimizer steps it
  dist_autograd::StateDict module;
  OptimizerState optimizer;
  OptimizerSpec spec;         // without a name: no optimizer steps it
  std::uint64_t version = 0;  // of the parameters
};
WEFT_CODEC(ModuleSnapshot, object, module, optimizer, spec, version)

}  // namespace weft::dist_optim

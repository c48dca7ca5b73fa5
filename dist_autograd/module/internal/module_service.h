// ModuleService: the methods `weft.module.*` that RemoteModule calls. Each method works on an object behind
// an RRef, which must be a torch::nn::Module, and runs in that object's turn. The AutogradLayer registers
// them.
#pragma once

#include <weft/dist_autograd/ids.h>
#include <weft/dist_autograd/module/remote_module.h>
#include <weft/rref/object_sizes.h>

namespace weft::dist_autograd {

struct WEFT_EXPORT ModuleService {
  // Each serves the function of RemoteModule with the same name, whose comment describes it.
  void train(rpc::CallContext& call, bool on);
  bool is_training(rpc::CallContext& call);
  void to(rpc::CallContext& call, std::optional<std::string> device, std::optional<std::string> dtype);
  std::vector<NamedReference> remote_parameters(rpc::CallContext& call);
  std::vector<NamedReference> remote_buffers(rpc::CallContext& call);
  StateDict gradients(rpc::CallContext& call, PassId pass);
  StateDict named_parameters(rpc::CallContext& call);
  StateDict named_buffers(rpc::CallContext& call);
  StateDict state_dict(rpc::CallContext& call);
  LoadedState load_state_dict(rpc::CallContext& call, StateDict state, bool strict);
  // Fails as load_state_dict() with this state would, and changes nothing. The values of the tensors do not
  // matter: the caller may send them expanded from one element.
  void check_state_dict(rpc::CallContext& call, StateDict state, bool strict);
  void zero_grad(rpc::CallContext& call, bool set_to_none);
  void requires_grad(rpc::CallContext& call, bool on);
  void manual_seed(rpc::CallContext& call, std::uint64_t seed);

  using Service =
      rpc::Service<"weft.module", rpc::Method<"train", &ModuleService::train, rpc::idempotent>,
                   rpc::Method<"is_training", &ModuleService::is_training, rpc::idempotent>,
                   rpc::Method<"to", &ModuleService::to>,
                   rpc::Method<"remote_parameters", &ModuleService::remote_parameters, rpc::idempotent>,
                   rpc::Method<"remote_buffers", &ModuleService::remote_buffers, rpc::idempotent>,
                   rpc::Method<"gradients", &ModuleService::gradients, rpc::idempotent>,
                   rpc::Method<"named_parameters", &ModuleService::named_parameters, rpc::idempotent>,
                   rpc::Method<"named_buffers", &ModuleService::named_buffers, rpc::idempotent>,
                   rpc::Method<"state_dict", &ModuleService::state_dict, rpc::idempotent>,
                   rpc::Method<"load_state_dict", &ModuleService::load_state_dict>,
                   rpc::Method<"check_state_dict", &ModuleService::check_state_dict, rpc::idempotent>,
                   rpc::Method<"zero_grad", &ModuleService::zero_grad>,
                   rpc::Method<"requires_grad", &ModuleService::requires_grad>,
                   rpc::Method<"manual_seed", &ModuleService::manual_seed>>;
};

// Copies of the module's parameters, then of its buffers. The caller prevents concurrent changes.
WEFT_EXPORT StateDict copy_state(const torch::nn::Module& module);

// A state that fits a module: the result of load_state_dict(), and the copies that remain to be made.
struct CheckedState {
  LoadedState loaded;
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;  // to, from

  // guarded: true if an ObjectGuard calls copy() (an optimizer is attached). The guard keeps the tensors that
  // graphs have read, so the copy does not change version counters.
  WEFT_EXPORT void copy(bool guarded) const;
};
// Checks `state` and changes nothing. Errors: those of load_state_dict().
WEFT_EXPORT CheckedState check_state(const torch::nn::Module& module, const StateDict& state, bool strict);

// Adds functions that compute the sizes of tensors and modules, for listings of objects.
void add_sizers(rref::ObjectSizes& sizes);

}  // namespace weft::dist_autograd

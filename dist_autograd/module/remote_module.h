// RemoteModule: the operations that any torch::nn::Module behind an RRef supports, although its Service does
// not list them.
//
//   rref::RRef<Net> net = rref::create<Net>(agent.peer("worker1"));
//   dist_autograd::RemoteModule module{net};
//   co_await module.eval();
//   const auto state = co_await module.state_dict();        // by value, with names
//   co_await dist_autograd::RemoteModule{other}.load_state_dict(state);
//
// It is a handle on the RRef, cheap to create and to copy. Every call runs in the object's turn and belongs
// to no pass. Tensors are sent by value under their names, never as an archive. While an optimizer is
// attached to the module (dist_optim), a read returns the newest version of its parameters, and a load makes
// a new version, as a step does: passes that have read the previous version keep it. While an optimizer is
// attached, `to` and `requires_grad` fail with failed_precondition. Without an optimizer, a load during an
// open pass makes that pass's backward fail (LibTorch's "modified by an inplace operation"). Errors:
// invalid_argument if the object is not a module. Thread-safe.
#pragma once

#include <weft/rpc/tensor/tensor_codec.h>
#include <weft/rref/rref.h>

#include <optional>
#include <string>
#include <type_traits>
#include <vector>

namespace torch::nn {
class Module;
}

namespace weft::dist_autograd {

class Pass;

// A parameter or buffer by value.
struct NamedTensor {
  std::string name;  // "conv.weight"
  at::Tensor tensor;
};
WEFT_CODEC(NamedTensor, name, tensor)
using StateDict = std::vector<NamedTensor>;  // in the module's order

// A parameter or buffer that stays on its owner.
struct NamedReference {
  std::string name;  // "conv.weight"
  rref::RRef<at::Tensor> tensor;
};
WEFT_CODEC(NamedReference, name, tensor)

// Names that only the module has, and names that only the given state has.
struct LoadedState {
  std::vector<std::string> missing, unexpected;
};
WEFT_CODEC(LoadedState, missing, unexpected)

class WEFT_EXPORT RemoteModule {
 public:
  template <class T>
    requires std::is_base_of_v<torch::nn::Module, T>
  RemoteModule(const rref::RRef<T>& module) : module_(module.reference()) {}
  explicit RemoteModule(rref::ReferencePtr module) : module_(std::move(module)) {}
  // with() and with_metadata() return handles whose calls use these options or this metadata. The options and
  // the metadata merge with those of this handle, as for a Peer.
  RemoteModule with(rpc::CallOptions options) const;
  RemoteModule with_metadata(rpc::Metadata metadata) const;

  // The counterparts of Module's functions: the training mode of the module and its submodules.
  rpc::Future<void> train(bool on = true) const;
  rpc::Future<void> eval() const { return train(false); }
  rpc::Future<bool> is_training() const;

  // Moves or converts the parameters and buffers, as Module::to does. device: a device of the owner, such as
  // "cpu" or "cuda:1". dtype: a name such as "float64" (dtype.h). invalid_argument: the owner has no such
  // device, or its DeviceOptions::devices does not contain it.
  rpc::Future<void> to(std::optional<std::string> device, std::optional<std::string> dtype = {}) const;

  // RRefs to the tensors themselves. They keep the module alive. Calls on them run in the module's turn, and
  // an attached optimizer controls these calls as it controls calls on the module. If a pass fetches a
  // parameter (to_here(pass), or as an argument), its gradient is accumulated on the owner.
  rpc::Future<std::vector<NamedReference>> remote_parameters() const;
  rpc::Future<std::vector<NamedReference>> remote_buffers() const;

  // Copies of the pass's gradients of the module's parameters. Parameters without a gradient are left out.
  // not_found: the pass has not reached the owner, or has ended.
  rpc::Future<StateDict> gradients(const Pass& pass) const;

  // Copies of the parameters, of the buffers, and of both.
  rpc::Future<StateDict> named_parameters() const;
  rpc::Future<StateDict> named_buffers() const;
  rpc::Future<StateDict> state_dict() const;  // parameters, then buffers
  // Copies the values into the module's tensors, which keep their storage. dtypes may differ if LibTorch can
  // cast them. strict: the names must equal those of the module. If a tensor does not fit, the call fails
  // with invalid_argument, which names the tensor, and nothing has changed.
  rpc::Future<LoadedState> load_state_dict(const StateDict& state, bool strict = true) const;

  // Clears `.grad` of all parameters. The gradients that belong to a pass do not change.
  rpc::Future<void> zero_grad(bool set_to_none = true) const;
  rpc::Future<void> requires_grad(bool on) const;  // of all floating parameters
  // Seeds LibTorch's generators in the owner's process, which all its modules share.
  rpc::Future<void> manual_seed(std::uint64_t seed) const;

  // The reference to the module's object, for higher layers.
  const rref::ReferencePtr& reference() const { return module_; }

 private:
  template <auto Method, class... Given>
  auto ask(Given&&... given) const;

  rref::ReferencePtr module_;
  rpc::CallOptions options_;
  rpc::Metadata metadata_;
};

// Creates a module on its owner, as rref::create does, and moves it to a device of the owner, such as
// "cuda:1", before any other call can use it. Completes when the module is on the device. Errors: those of
// the constructor and of RemoteModule::to.
template <class T, class... Given>
  requires std::is_base_of_v<torch::nn::Module, T>
rpc::Future<rref::RRef<T>> create_module(rref::detail::PeerAndSite owner, const std::string& device,
                                         Given&&... given) {
  auto module = rref::create<T>(std::move(owner), std::forward<Given>(given)...);
  const RemoteModule handle(module);
  return handle.to(device).then([module = std::move(module)](rpc::Result<void>&& moved) {
    return moved.ok() ? rpc::Result<rref::RRef<T>>(module) : rpc::Result<rref::RRef<T>>(moved.error());
  });
}

}  // namespace weft::dist_autograd

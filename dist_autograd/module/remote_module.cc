#include <weft/dist_autograd/module/remote_module.h>

#include <weft/dist_autograd/module/internal/module_service.h>
#include <weft/dist_autograd/pass.h>
#include <weft/rref/rref_layer.h>

namespace weft::dist_autograd {

template <auto Method, class... Given>
auto RemoteModule::ask(Given&&... given) const {
  using Found = rpc::FoundMethod<Method>;
  using Value = typename Found::Type::Traits::Result;
  const auto& references = module_->layer();
  const rpc::Peer owner = references->peer(module_->owner(), options_).with_metadata(metadata_);
  rpc::OutgoingCall call = owner.calls().make(Found::name, sizeof...(Given));
  try {
    references->target(module_, call);
  } catch (const rpc::Error&) {
    return rpc::Future<Value>::made(std::current_exception());
  }
  rpc::encode_call<typename Found::Type>(call, std::forward<Given>(given)...);
  return owner.calls().start_typed<Value>(
      std::move(call), [module = module_->about()](rpc::Result<rpc::PendingCall::Reply>&& reply) {
        return rpc::decode_reply<Value>(rref::RRefLayer::explain(std::move(reply), *module), Found::name);
      });
}

RemoteModule RemoteModule::with(rpc::CallOptions options) const {
  RemoteModule copy = *this;
  copy.options_.merge(options);
  return copy;
}
RemoteModule RemoteModule::with_metadata(rpc::Metadata metadata) const {
  RemoteModule copy = *this;
  metadata.merge(copy.metadata_);
  copy.metadata_ = std::move(metadata);
  return copy;
}

rpc::Future<void> RemoteModule::train(bool on) const { return ask<&ModuleService::train>(on); }
rpc::Future<bool> RemoteModule::is_training() const { return ask<&ModuleService::is_training>(); }
rpc::Future<void> RemoteModule::to(std::optional<std::string> device,
                                   std::optional<std::string> dtype) const {
  return ask<&ModuleService::to>(std::move(device), std::move(dtype));
}
rpc::Future<std::vector<NamedReference>> RemoteModule::remote_parameters() const {
  return ask<&ModuleService::remote_parameters>();
}
rpc::Future<std::vector<NamedReference>> RemoteModule::remote_buffers() const {
  return ask<&ModuleService::remote_buffers>();
}
rpc::Future<StateDict> RemoteModule::gradients(const Pass& pass) const {
  return ask<&ModuleService::gradients>(pass.id());
}
rpc::Future<StateDict> RemoteModule::named_parameters() const {
  return ask<&ModuleService::named_parameters>();
}
rpc::Future<StateDict> RemoteModule::named_buffers() const { return ask<&ModuleService::named_buffers>(); }
rpc::Future<StateDict> RemoteModule::state_dict() const { return ask<&ModuleService::state_dict>(); }
rpc::Future<LoadedState> RemoteModule::load_state_dict(const StateDict& state, bool strict) const {
  return ask<&ModuleService::load_state_dict>(state, strict);
}
rpc::Future<void> RemoteModule::zero_grad(bool set_to_none) const {
  return ask<&ModuleService::zero_grad>(set_to_none);
}
rpc::Future<void> RemoteModule::requires_grad(bool on) const {
  return ask<&ModuleService::requires_grad>(on);
}
rpc::Future<void> RemoteModule::manual_seed(std::uint64_t seed) const {
  return ask<&ModuleService::manual_seed>(seed);
}

}  // namespace weft::dist_autograd

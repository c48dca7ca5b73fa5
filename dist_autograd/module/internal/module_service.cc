#include <weft/dist_autograd/module/internal/module_service.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/rpc/tensor/device_options.h>
#include <weft/rpc/tensor/dtype.h>

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <map>
#include <set>
#include <sstream>

namespace weft::dist_autograd {
namespace {

using Entries = std::vector<std::pair<std::string, at::Tensor>>;

rpc::Error refused(rpc::ErrorKind kind, const std::string& text) { return rpc::Error(kind, text); }

struct CalledModule {
  const rref::RRefLayer::Target* target;
  torch::nn::Module* module;

  // The object's turn belongs to this call: a guard that an earlier call attached is visible.
  void read(const std::function<void()>& body) const {
    const auto guard = target->object->guard();
    guard != nullptr ? guard->read(body) : body();
  }
  void refuse_while_optimized(const std::string& what) const {
    if (target->object->guard() == nullptr) return;
    throw refused(rpc::ErrorKind::failed_precondition,
                  what +
                      ": an optimizer is attached to this module, and its parameters must keep their device, "
                      "dtype and requires_grad");
  }
};

CalledModule called_module(rpc::CallContext& call) {
  const auto* target = call.slots().find<rref::RRefLayer::Target>();
  if (target == nullptr)
    throw refused(rpc::ErrorKind::invalid_argument,
                  std::string(call.method()) + ": the call names no object behind an RRef");
  auto* module = target->object->as<torch::nn::Module>();
  if (module == nullptr)
    throw refused(rpc::ErrorKind::invalid_argument,
                  std::string(call.method()) + ": expected a torch::nn::Module, not an object of type " +
                      target->object->value().type->name);
  return {target, module};
}

Entries parameters_of(const torch::nn::Module& module) {
  Entries all;
  for (const auto& item : module.named_parameters()) all.emplace_back(item.key(), item.value());
  return all;
}
Entries buffers_of(const torch::nn::Module& module) {
  Entries all;
  for (const auto& item : module.named_buffers()) all.emplace_back(item.key(), item.value());
  return all;
}
Entries state_of(const torch::nn::Module& module) {
  Entries all = parameters_of(module);
  for (auto& buffer : buffers_of(module)) all.push_back(std::move(buffer));
  return all;
}

StateDict copies(const Entries& entries) {
  StateDict state;
  at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : entries)
    state.push_back({name, tensor.defined() ? tensor.detach().clone() : at::Tensor()});
  return state;
}

// Copied here: the reply is written when another call may have the turn.
StateDict copies(const CalledModule& of, const Entries& entries) {
  StateDict state;
  of.read([&] { state = copies(entries); });
  return state;
}

std::vector<NamedReference> references(rpc::CallContext& call, const CalledModule& of,
                                       const Entries& entries) {
  const auto layer = rref::RRefLayer::of(*call.host());
  std::vector<NamedReference> all;
  for (const auto& [name, tensor] : entries)
    all.push_back({name, rref::RRef<at::Tensor>(layer->adopt_local(
                             rpc::detail::kept(std::make_shared<at::Tensor>(tensor)), "tensor",
                             name + " of object " + to_string(of.target->held->id()), of.target->object))});
  return all;
}

std::string shape_text(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

void check(const std::string& name, const at::Tensor& own, const at::Tensor& given) {
  const auto wrong = [&](const std::string& why) {
    throw refused(rpc::ErrorKind::invalid_argument, "'" + name + "' " + why);
  };
  if (!given.defined() || !own.defined()) {
    if (given.defined() != own.defined()) wrong("is defined on one side only");
    return;
  }
  if (given.layout() != at::kStrided) wrong("is not dense");
  if (given.sizes() != own.sizes()) wrong("is of shape " + shape_text(own) + ", not " + shape_text(given));
  if (!c10::canCast(given.scalar_type(), own.scalar_type()))
    wrong("is of type " + std::string(tensor::dtype_name(own.scalar_type())) + ", to which " +
          std::string(tensor::dtype_name(given.scalar_type())) + " is not cast");
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const auto& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

}  // namespace

StateDict copy_state(const torch::nn::Module& module) { return copies(state_of(module)); }

void ModuleService::train(rpc::CallContext& call, bool on) { called_module(call).module->train(on); }

bool ModuleService::is_training(rpc::CallContext& call) { return called_module(call).module->is_training(); }

void ModuleService::to(rpc::CallContext& call, std::optional<std::string> device,
                       std::optional<std::string> dtype) {
  const CalledModule called = called_module(call);
  called.refuse_while_optimized("to() is refused");
  std::optional<at::Device> where;
  std::optional<at::ScalarType> what;
  try {
    if (device) where = at::Device(*device);
  } catch (const c10::Error& error) {
    throw refused(rpc::ErrorKind::invalid_argument,
                  "not a device: '" + *device + "': " + error.what_without_backtrace());
  }
  if (where && !where->is_cpu()) {
    if (!where->has_index()) where->set_index(0);
    if (const auto devices = call.host()->layers().share<tensor::AgentDevices>())
      devices->check(*where, "the device of a module");
  }
  if (dtype) what = tensor::dtype_from_name(*dtype);
  if (what && !at::isFloatingType(*what) && !at::isComplexType(*what))
    throw refused(rpc::ErrorKind::invalid_argument, "to: the parameters of a module cannot have the dtype " +
                                                        *dtype +
                                                        ": expected a floating-point or complex type");
  if (where && what) {
    called.module->to(*where, *what);
  } else if (where) {
    called.module->to(*where);
  } else if (what) {
    called.module->to(*what);
  }
}

std::vector<NamedReference> ModuleService::remote_parameters(rpc::CallContext& call) {
  const CalledModule called = called_module(call);
  return references(call, called, parameters_of(*called.module));
}

std::vector<NamedReference> ModuleService::remote_buffers(rpc::CallContext& call) {
  const CalledModule called = called_module(call);
  return references(call, called, buffers_of(*called.module));
}

StateDict ModuleService::gradients(rpc::CallContext& call, PassId pass) {
  const CalledModule called = called_module(call);
  const auto state = AutogradLayer::of(*call.host())->find(pass);
  Entries found;
  for (auto& [name, parameter] : parameters_of(*called.module))
    if (at::Tensor gradient = state->gradient(parameter); gradient.defined())
      found.emplace_back(name, std::move(gradient));
  return copies(found);
}

StateDict ModuleService::named_parameters(rpc::CallContext& call) {
  const CalledModule called = called_module(call);
  return copies(called, parameters_of(*called.module));
}

StateDict ModuleService::named_buffers(rpc::CallContext& call) {
  const CalledModule called = called_module(call);
  return copies(called, buffers_of(*called.module));
}

StateDict ModuleService::state_dict(rpc::CallContext& call) {
  const CalledModule called = called_module(call);
  return copies(called, state_of(*called.module));
}

CheckedState check_state(const torch::nn::Module& module, const StateDict& state, bool strict) {
  std::map<std::string, at::Tensor> given;
  for (const NamedTensor& entry : state)
    if (!given.emplace(entry.name, entry.tensor).second)
      throw refused(rpc::ErrorKind::invalid_argument, "'" + entry.name + "' is given twice");
  CheckedState checked;
  LoadedState& loaded = checked.loaded;
  std::set<std::string> own;
  for (const auto& [name, tensor] : state_of(module)) {
    own.insert(name);
    const auto found = given.find(name);
    if (found == given.end()) {
      loaded.missing.push_back(name);
      continue;
    }
    check(name, tensor, found->second);
    if (tensor.defined()) checked.copies.emplace_back(tensor, found->second);
  }
  for (const auto& [name, tensor] : given)
    if (!own.contains(name)) loaded.unexpected.push_back(name);
  if (strict && !(loaded.missing.empty() && loaded.unexpected.empty()))
    throw refused(rpc::ErrorKind::invalid_argument,
                  "the state does not fit the module: missing: " + joined(loaded.missing) +
                      "; unexpected: " + joined(loaded.unexpected));
  return checked;
}

// If a guard keeps the tensors that graphs have read, their version counters do not change.
void CheckedState::copy(bool guarded) const {
  at::NoGradGuard no_grad;
  for (const auto& [to, from] : copies) (guarded ? to.variable_data() : to).copy_(from);
}

LoadedState ModuleService::load_state_dict(rpc::CallContext& call, StateDict state, bool strict) {
  const CalledModule called = called_module(call);
  const CheckedState checked = check_state(*called.module, state, strict);
  if (const auto guard = called.target->object->guard()) {
    guard->change([&] { checked.copy(true); });
  } else {
    checked.copy(false);
  }
  return checked.loaded;
}

void ModuleService::check_state_dict(rpc::CallContext& call, StateDict state, bool strict) {
  (void)check_state(*called_module(call).module, state, strict);
}

void ModuleService::zero_grad(rpc::CallContext& call, bool set_to_none) {
  called_module(call).module->zero_grad(set_to_none);
}

void ModuleService::requires_grad(rpc::CallContext& call, bool on) {
  const CalledModule called = called_module(call);
  called.refuse_while_optimized("requires_grad() is refused");
  for (auto& parameter : called.module->parameters())
    if (parameter.is_floating_point() || parameter.is_complex()) parameter.set_requires_grad(on);
}

void ModuleService::manual_seed(rpc::CallContext& call, std::uint64_t seed) {
  called_module(call);
  at::manual_seed(seed);
}

void add_sizers(rref::ObjectSizes& sizes) {
  const auto bytes_of = [](const at::Tensor& tensor) -> std::uint64_t {
    if (!tensor.defined()) return 0;
    if (tensor.layout() == at::kStrided) return tensor.nbytes();
    if (tensor.layout() == at::kSparse) return tensor._indices().nbytes() + tensor._values().nbytes();
    return 0;
  };
  sizes.add([bytes_of](const rref::StoredObject& object) -> std::optional<std::uint64_t> {
    if (object.value().type->name != "tensor") return std::nullopt;
    return bytes_of(*static_cast<const at::Tensor*>(object.value().value.get()));
  });
  sizes.add([bytes_of](const rref::StoredObject& object) -> std::optional<std::uint64_t> {
    const auto* module = object.as<torch::nn::Module>();
    if (module == nullptr) return std::nullopt;
    std::uint64_t sum = 0;
    for (const auto& [name, tensor] : state_of(*module)) sum += bytes_of(tensor);
    return sum;
  });
}

}  // namespace weft::dist_autograd

// ServedModule: a class with which a program serves one of LibTorch's modules behind RRefs under a name,
// without declaring its own class.
//
//   using Relu = dist_autograd::ServedModule<"nn.relu", torch::nn::ReLUImpl>;
//   agent.allow_create<Relu>();                       // on the owner
//   rref::RRef<Relu> relu = rref::create<Relu>(peer);  // on any agent
//   at::Tensor y = co_await relu.call<&Relu::forward>(pass, x);
//
// Impl: a torch::nn::Module with forward(Tensor) -> Tensor, such as torch::nn::LinearImpl (not
// torch::nn::Linear, which is a holder of a LinearImpl). Parameters: the parameter types of the constructor
// that peers call. Peers use the same ServedModule type; Name is the name of its service. RemoteModule and
// optimizers accept it like any module. One call on a module runs at a time. Errors: those of Impl.
#pragma once

#include <weft/rpc/rpc.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <concepts>
#include <utility>

namespace torch::nn {
class Module;
}

namespace weft::dist_autograd {

template <rpc::FixedString Name, class Impl, class... Parameters>
  requires std::derived_from<Impl, torch::nn::Module> &&
           requires(Impl& module, at::Tensor input) {
             { module.forward(input) } -> std::convertible_to<at::Tensor>;
           } && std::constructible_from<Impl, Parameters...>
class ServedModule final : public Impl {
 public:
  explicit ServedModule(Parameters... parameters) : Impl(std::move(parameters)...) {}
  at::Tensor forward(at::Tensor input) { return Impl::forward(std::move(input)); }

  using Service =
      rpc::Service<Name, rpc::Constructor<Parameters...>, rpc::Method<"forward", &ServedModule::forward>>;
};

}  // namespace weft::dist_autograd

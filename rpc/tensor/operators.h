// Calls of ATen operators by name, from an allow-list of the serving agent:
//
//   tensor::allow_operators(agent, {"aten::mm", "aten::add.Tensor"});
//   at::Tensor product = co_await tensor::call_operator(peer, "aten::mm", pass, a, b);
//
// A name is an operator's name in LibTorch's dispatcher, with its overload after a dot. Arguments are
// positional; trailing arguments may be omitted if the operator's schema has defaults for them. A dtype is
// passed by name ("float32"). Parameters that cannot be sent (device, layout, generator) have their default
// values. In a call with a pass, the operator is part of the graph of the pass.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/tensor/tensor_codec.h>

#include <string_view>
#include <vector>

namespace weft::tensor {

// Permits peers to call these operators. Thread-safe. Throws not_found if LibTorch has no such operator,
// unsupported if a result, or a parameter without a default, cannot be sent, and already_exists if the
// operator is allowed already.
WEFT_EXPORT void allow_operators(rpc::Agent& agent, const std::vector<std::string_view>& names);

namespace detail {

template <class Given>
using SentArgument =
    std::conditional_t<std::is_convertible_v<Given, std::string_view>, std::string, std::decay_t<Given>>;

template <class Value, class... Given>
struct OperatorCall {
  using Traits = rpc::detail::Signature<Value, SentArgument<Given>...>;
  static constexpr bool is_idempotent = false, is_background = false;
};

template <class Value, class... Given>
void encode_operator(rpc::OutgoingCall& call, Given&&... given) {
  rpc::encode_call<OperatorCall<Value, Given...>>(call, std::forward<Given>(given)...);
  call.signature = 0;  // unknown: the callee's signature depends on the operator's schema
}
// Leading modifiers are applied before.
template <class Value, class First, class... Rest>
  requires rpc::is_modifier<First>
void encode_operator(rpc::OutgoingCall& call, First&& first, Rest&&... rest) {
  first.apply(call);
  encode_operator<Value>(call, std::forward<Rest>(rest)...);
}

}  // namespace detail

// Calls an operator, and returns a future of its result. Value: at::Tensor, a scalar, a vector of tensors, or
// a tuple of these if the operator has several results. Modifiers (a pass) precede the arguments.
template <class Value = at::Tensor, class... Given>
rpc::Future<Value> call_operator(const rpc::Peer& peer, std::string_view name, Given&&... given) {
  auto text = std::make_shared<const std::string>(name);  // the call refers to it
  rpc::OutgoingCall call = peer.calls().make(*text, rpc::count_sent<Given...>);
  peer.calls().add_default_timeout(call);
  detail::encode_operator<Value>(call, std::forward<Given>(given)...);
  return peer.calls().start_typed<Value>(std::move(call),
                                         [text](rpc::Result<rpc::PendingCall::Reply>&& reply) {
                                           return rpc::decode_reply<Value>(std::move(reply), *text);
                                         });
}

}  // namespace weft::tensor

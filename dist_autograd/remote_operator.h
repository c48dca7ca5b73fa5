// An ATen operator on a peer that allows it (rpc/tensor/operators.h), whose result stays there.
//
//   auto product = dist_autograd::remote_operator(peer, "aten::mm", pass, a, b);  // RRef<Tensor>, at once
//   auto sum = tensor::call_operator(product.owner_peer(), "aten::sum", pass, product);
//
// RRefs stand for their tensors among the arguments, here and in call_operator: an operator on a tensor
// behind an RRef is best called at its owner. Modifiers (a pass) stand before the arguments. What fails is
// the RRef's error: `not_found` where the peer does not allow the operator.
#pragma once

#include <weft/rpc/tensor/operators.h>
#include <weft/rref/rref.h>

namespace weft::dist_autograd {

// Operators with one result, which is a tensor.
template <class... Given>
rref::RRef<at::Tensor> remote_operator(rref::detail::Place place, std::string_view name, Given&&... given) {
  auto text = std::make_shared<const std::string>(name);  // which the call refers to
  return rref::detail::keep_result_of<at::Tensor>(
      place.peer, *text, rref::detail::values<Given...>, nullptr, place.site, {},
      [&](rpc::OutgoingCall& call) {
        tensor::detail::encode_operator_after_modifiers<at::Tensor>(call, std::forward<Given>(given)...);
      },
      text);
}

}  // namespace weft::dist_autograd

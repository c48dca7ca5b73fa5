// An ATen operator on a peer that allows it (rpc/tensor/operators.h). Its result stays there.
//
//   auto product = dist_autograd::remote_operator(peer, "aten::mm", pass, a, b);  // RRef<Tensor>, at once
//   auto sum = tensor::call_operator(product.owner_peer(), "aten::sum", pass, product);
//
// RRefs among the arguments represent their tensors, here and in call_operator: call an operator on a tensor
// behind an RRef at its owner. Modifiers (a pass) precede the arguments. A failure is the RRef's error:
// `not_found` if the peer does not allow the operator.
#pragma once

#include <weft/rpc/tensor/operators.h>
#include <weft/rref/rref.h>

namespace weft::dist_autograd {

// Operators with one result, which is a tensor.
template <class... Given>
rref::RRef<at::Tensor> remote_operator(rref::detail::Place place, std::string_view name, Given&&... given) {
  auto text = std::make_shared<const std::string>(name);  // the call refers to it
  return rref::detail::keep_result_of<at::Tensor>(
      place.peer, *text, rref::detail::values<Given...>, nullptr, place.site, {},
      [&](rpc::OutgoingCall& call) {
        tensor::detail::encode_operator_after_modifiers<at::Tensor>(call, std::forward<Given>(given)...);
      },
      text);
}

}  // namespace weft::dist_autograd

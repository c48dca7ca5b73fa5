// remote_operator: calls an ATen operator on a peer that allows it (rpc/tensor/operators.h). The result stays
// on the peer.
//
//   auto product = dist_autograd::remote_operator(peer, "aten::mm", pass, a, b);  // RRef<Tensor>, at once
//   auto sum = tensor::call_operator(product.owner_peer(), "aten::sum", pass, product);
//
// Here and in call_operator, an argument may be an RRef, which represents its tensor. In that case, call the
// operator on the owner of the tensor. Modifiers (a pass) precede the arguments. If the operator fails, the
// RRef has the error; `not_found`: the peer does not allow the operator.
#pragma once

#include <weft/rpc/tensor/operators.h>
#include <weft/rref/rref.h>

namespace weft::dist_autograd {

// The operator must have one result, a tensor. name: such as "aten::mm".
template <class... Given>
rref::RRef<at::Tensor> remote_operator(rref::detail::PeerAndSite creator, std::string_view name,
                                       Given&&... given) {
  auto text = std::make_shared<const std::string>(name);  // the call refers to it
  return rref::detail::keep_result_of<at::Tensor>(
      creator.peer, *text, rpc::count_sent<Given...>, nullptr, creator.site, {},
      [&](rpc::OutgoingCall& call) {
        tensor::detail::encode_operator<at::Tensor>(call, std::forward<Given>(given)...);
      },
      text);
}

}  // namespace weft::dist_autograd

// SendBackward and RecvBackward: the nodes at which a pass's graph crosses from one worker to another.
//
// SendBackward is at the sender of a message, with an edge to every sent tensor; its inputs arrive from the
// receiver. RecvBackward is at the receiver, as the grad_fn of the received tensors. If the pass runs it, it
// sends its gradients. If anything else reaches it (a local .backward()), it fails with an error that
// explains this.
#pragma once

#include <weft/dist_autograd/engine/make_node.h>
#include <weft/dist_autograd/ids.h>
#include <weft/rpc/tensor/device_map.h>

#include <torch/csrc/autograd/function.h>

#include <memory>

namespace weft::dist_autograd {

class PassState;

class SendBackward final : public torch::autograd::Node {
 public:
  SendBackward(const std::vector<at::Tensor>& tensors, std::string destination);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "SendBackward(to " + destination_ + ")"; }

 private:
  std::string destination_;
};

class RecvBackward final : public torch::autograd::Node {
 public:
  // back: the devices of its gradients at the sender; empty: as for any call to it.
  RecvBackward(std::weak_ptr<PassState> pass, PassId id, MessageId message, rpc::AgentId sender,
               tensor::DeviceMap back);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "RecvBackward(from " + sender_.name + ")"; }

  // The tensor that was sent with `mark`, as this node's next output.
  at::Tensor join(const NodePtr& self, at::Tensor tensor, std::uint64_t mark);
  const PassId& pass_id() const { return id_; }
  const MessageId& message() const { return message_; }
  const rpc::AgentId& sender() const { return sender_; }

 private:
  std::weak_ptr<PassState> pass_;
  PassId id_;
  MessageId message_;
  rpc::AgentId sender_;
  tensor::DeviceMap back_;
  std::vector<std::uint64_t> marks_;  // of each input
};

}  // namespace weft::dist_autograd

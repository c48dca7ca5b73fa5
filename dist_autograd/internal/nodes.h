// SendBackward and RecvBackward: the nodes at which a pass's graph crosses from one worker to another.
//
// The sender of a message has a SendBackward with an edge to every sent tensor; the gradients that are its
// inputs arrive from the receiver. The receiver has a RecvBackward, which is the grad_fn of the received
// tensors. If a backward of the pass runs the RecvBackward, it sends its gradients to the sender. If a local
// .backward() reaches the RecvBackward, that backward fails with an error that explains this.
#pragma once

#include <weft/dist_autograd/engine/internal/make_node.h>
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
  // back: the devices of the gradients at the sender; if empty, the agent's device map applies.
  RecvBackward(std::weak_ptr<PassState> pass, PassId id, MessageId message, rpc::AgentId sender,
               tensor::DeviceMap back);
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  std::string name() const override { return "RecvBackward(from " + sender_.name + ")"; }

  // Makes this node the grad_fn of `tensor` and returns the tensor. The gradient of the tensor becomes the
  // next input of the node. mark: the number by which the sender marked the tensor in the message.
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

// MessagePart: the CallPart of a pass in one call, at the caller or at the callee. It connects sent and
// received tensors with the graph of the pass.
//
// Each message with tensors that require grad gets a SendBackward where it is written and a RecvBackward
// where it is read, paired by its MessageId. As thread-safe as CallPart.
#pragma once

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_autograd/internal/nodes.h>
#include <weft/rpc/tensor/tensor_hook.h>
#include <weft/rpc/wire/message.h>

namespace weft::dist_autograd {

class MessagePart final : public rpc::CallPart {
 public:
  // peer: at the callee, the id of the caller. At the caller, nullopt, because the message itself has its
  // destination. backward: true if the call belongs to a backward that is recorded (create_graph).
  MessagePart(std::shared_ptr<PassState> pass, std::optional<rpc::AgentId> peer, bool backward);
  ~MessagePart() override;

  void write(rpc::OutgoingMessage& message) override;
  void seal(rpc::OutgoingMessage& message) override;
  void read(rpc::IncomingMessage& message) override;
  void ended(const std::exception_ptr& error) override;

 private:
  class Recorder;
  class Joiner;

  std::shared_ptr<PassState> pass_;
  std::optional<rpc::AgentId> peer_;
  const bool backward_;
  bool counted_;  // at the caller: the pass counts the call as outstanding
  std::shared_ptr<Recorder> recorder_;
  std::optional<MessageId> sent_;
};

}  // namespace weft::dist_autograd

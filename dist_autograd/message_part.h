// MessagePart: the pass's part in one call, on either side: it records what is sent and joins what is
// received.
//
// Each message with tensors that require grad gets a SendBackward where it is written and a RecvBackward
// where it is read, paired by its MessageId. See CallPart for its thread-safety.
#pragma once

#include <weft/dist_autograd/autograd_layer.h>
#include <weft/dist_autograd/nodes.h>
#include <weft/rpc/agent/call_part.h>
#include <weft/rpc/tensor/tensor_hook.h>

namespace weft::dist_autograd {

class MessagePart final : public rpc::CallPart {
 public:
  // peer: the caller, on the callee's side; none on the caller's, where the message knows its destination.
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
  const bool backward_;  // one of a backward that is recorded
  bool counted_;         // the caller's side: the call is one of the pass's until it ends
  std::shared_ptr<Recorder> recorder_;
  std::optional<MessageId> sent_;
};

}  // namespace weft::dist_autograd

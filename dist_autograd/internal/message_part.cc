#include <weft/dist_autograd/internal/message_part.h>

#include <weft/rpc/tensor/device_layer.h>

#include <torch/csrc/autograd/variable.h>

namespace weft::dist_autograd {
namespace {

// Whether the receiver has certainly not seen the message. After any other failure it may hold the message's
// tensors.
bool was_not_sent(const std::exception_ptr& error) {
  const auto failure = rpc::as_error(error);
  return failure && failure->execution() == rpc::Execution::not_sent;
}

}  // namespace

class MessagePart::Recorder final : public tensor::TensorHook {
 public:
  SentTensor sending(const at::Tensor& tensor) override {
    if (!tensor.requires_grad()) return {tensor.detach(), {}};
    sent.push_back(tensor);
    return {tensor.detach(), sent.size() - 1};
  }
  at::Tensor received(at::Tensor, std::uint64_t) override {
    throw rpc::Error(rpc::ErrorKind::internal, "a message that is being written was read");
  }
  std::vector<at::Tensor> sent;
};

class MessagePart::Joiner final : public tensor::TensorHook {
 public:
  Joiner(const std::shared_ptr<PassState>& pass, const PassSection& section, const rpc::AgentId& sender,
         tensor::DeviceMap back)
      : tensors_(section.tensors),
        node_(make_node<RecvBackward>(pass, section.pass, section.message, sender, std::move(back))) {}

  SentTensor sending(const at::Tensor&) override {
    throw rpc::Error(rpc::ErrorKind::internal, "a message that is being read was written");
  }
  at::Tensor received(at::Tensor tensor, std::uint64_t mark) override {
    if (mark >= tensors_)
      throw rpc::Error(rpc::ErrorKind::invalid_argument,
                       "a message of a pass states " + std::to_string(tensors_) +
                           " tensors that require grad, but contains one with the mark " +
                           std::to_string(mark));
    return node_->join(node_, std::move(tensor), mark);
  }

 private:
  std::uint64_t tensors_;
  decltype(make_node<RecvBackward>(std::weak_ptr<PassState>{}, PassId{}, MessageId{}, rpc::AgentId{},
                                   tensor::DeviceMap{})) node_;
};

MessagePart::MessagePart(std::shared_ptr<PassState> pass, std::optional<rpc::AgentId> peer, bool backward)
    : pass_(std::move(pass)), peer_(std::move(peer)), backward_(backward), counted_(!peer_) {
  if (counted_) pass_->call_began(PassState::Direction::outgoing);
}

MessagePart::~MessagePart() {
  if (counted_) pass_->call_ended(PassState::Direction::outgoing);  // the call was never made
}

void MessagePart::write(rpc::OutgoingMessage& message) {
  recorder_ = std::make_shared<Recorder>();
  message.slots().put<tensor::TensorHook>(recorder_);
}

void MessagePart::seal(rpc::OutgoingMessage& message) {
  if (!peer_ && message.destination() != nullptr) {
    peer_ = *message.destination();
    message.bind_destination();  // another incarnation would not be notified of the pass's end
  }
  if (!peer_)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "a call in a pass: the peer's incarnation is unknown: await peer.ready() first, or "
                     "wait_for() the job");
  pass_->meet(*peer_);
  PassSection section{pass_->id(),
                      {},
                      recorder_->sent.size(),
                      backward_,
                      pass_->layer().oldest_beside(pass_->id()),
                      pass_->hooks().wants_finalize()};
  if (!recorder_->sent.empty()) {
    section.message = pass_->next_message();
    sent_ = section.message;
    pass_->add_send(section.message, make_node<SendBackward>(recorder_->sent, peer_->name));
  }
  recorder_ = nullptr;
  rpc::Codec<PassSection>::encode(message.section(section_key, true), section);
}

void MessagePart::read(rpc::IncomingMessage& message) {
  const auto value = message.section(section_key);
  if (!value) return;
  const auto section = rpc::Codec<PassSection>::decode(*value);
  if (section.pass != pass_->id())
    throw rpc::Error(rpc::ErrorKind::protocol_error,
                     "a call of " + to_string(pass_->id()) + " got a reply of " + to_string(section.pass));
  if (section.wants_finalize) pass_->hooks().note_wants_finalize();
  if (section.tensors > message.bytes())
    throw rpc::Error(rpc::ErrorKind::protocol_error, "a message of " + std::to_string(message.bytes()) +
                                                         " bytes states " + std::to_string(section.tensors) +
                                                         " tensors that require grad");
  if (section.tensors != 0)
    message.slots().put<tensor::TensorHook>(
        std::make_shared<Joiner>(pass_, section, *peer_, tensor::device_map_back(message)));
}

void MessagePart::ended(const std::exception_ptr& error) {
  if (error != nullptr && sent_ && was_not_sent(error)) pass_->remove_send(*sent_);
  if (std::exchange(counted_, false)) pass_->call_ended(PassState::Direction::outgoing);
}

}  // namespace weft::dist_autograd

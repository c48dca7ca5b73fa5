#include <weft/rpc/call/outgoing_call.h>

#include <weft/rpc/call/call_context.h>
#include <weft/rpc/codec/codec.h>

namespace weft::rpc {

OutgoingCall::OutgoingCall(std::string_view method, std::uint64_t id, std::size_t arguments)
    : method_(method), id_(id), message_(OutgoingMessage::request(arguments)) {}

OutgoingCall::~OutgoingCall() {
  if (message_ == nullptr) return;  // the call was submitted
  for (auto& part : message_->take_parts()) parts_.push_back(std::move(part));
  if (watches_.empty() && parts_.empty()) return;
  const auto error = std::make_exception_ptr(
      Error(ErrorKind::aborted, method_ + ": the call was dropped before it was made", Execution::not_sent));
  for (const auto& watch : watches_) watch->ended(error);
  for (const auto& part : parts_) part->ended(error);
}

OutgoingCall::OutgoingCall(std::string_view method, std::uint64_t id,
                           std::unique_ptr<OutgoingMessage> message)
    : method_(method), id_(id), message_(std::move(message)) {}

void OutgoingCall::set_metadata(std::string key, std::string value) {
  metadata_.insert_or_assign(std::move(key), std::move(value));
}

void OutgoingCall::begin() {
  message_->set_notification(notify);
  for (const auto& part : parts_) part->write(*message_);
}
void OutgoingCall::end() {
  for (auto& part : message_->take_parts()) parts_.push_back(std::move(part));
  for (const auto& part : parts_) part->seal(*message_);
  if (message_->bound()) only = message_->destination();
  if (!metadata_.empty())
    Codec<std::map<std::string, std::string>>::encode(message_->section(metadata_section, false), metadata_);
}

}  // namespace weft::rpc

#include <weft/rpc/endpoint/outgoing_calls.h>

#include <algorithm>

namespace weft::rpc {

// A search for each call that ends would cost O(n * n) for n calls.
void OutgoingCalls::hold(std::shared_ptr<PendingCall> call) {
  if (call->control()) return held_control_.push(std::move(call));
  if (held_.size() >= prune_at_) {
    Fifo<std::shared_ptr<PendingCall>> live;
    while (!held_.empty())
      if (auto waiting = held_.pop(); !waiting->finished()) live.push(std::move(waiting));
    held_ = std::move(live);
    prune_at_ = std::max<std::size_t>(64, 2 * held_.size());
  }
  held_.push(std::move(call));
}

std::shared_ptr<PendingCall> OutgoingCalls::next() {
  while (!held_control_.empty())
    if (auto call = held_control_.pop(); !call->finished()) return call;
  while (!held_.empty()) {
    if (!held_.front()->finished() && !has_credit()) return nullptr;
    if (auto call = held_.pop(); !call->finished()) return call;
  }
  return nullptr;
}

OutgoingCalls::Calls OutgoingCalls::held() const {
  Calls calls(held_control_.begin(), held_control_.end());
  calls.insert(calls.end(), held_.begin(), held_.end());
  return calls;
}

OutgoingCalls::Calls OutgoingCalls::take_held() {
  Calls calls = held();
  held_control_ = {};
  held_ = {};
  return calls;
}

std::optional<OutgoingCalls::SentCall> OutgoingCalls::take(std::uint64_t id) {
  auto sent = sent_.take(id);
  if (sent && sent->uses_credit) give_back(1, sent->bytes);
  return sent;
}

OutgoingCalls::Calls OutgoingCalls::in_flight() const {
  Calls calls;
  sent_.for_each([&](std::uint64_t, const SentCall& sent) {
    if (sent.call != nullptr) calls.push_back(sent.call);
  });
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a->id() < b->id(); });
  return calls;
}

OutgoingCalls::Calls OutgoingCalls::take_all() {
  Calls calls = in_flight();
  (void)sent_.take_all();
  calls_ = bytes_ = 0;
  return calls;
}

}  // namespace weft::rpc

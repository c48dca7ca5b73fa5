#include <weft/rpc/endpoint/sent_frames.h>

#include <algorithm>

namespace weft::rpc {
namespace {

// In frames; the larger one is freed when all frames are acknowledged.
constexpr std::size_t smallest_ring = 16, largest_idle_ring = 1024;

}  // namespace

void SentFrames::count(const UnacknowledgedFrame& kept, std::int64_t sign) {
  const auto bytes = static_cast<std::uint64_t>(sign) * kept.frame.bytes();
  const auto one = static_cast<std::size_t>(sign);
  bytes_ += bytes;
  if (kept.kind == FrameKind::reply) reply_bytes_ += bytes;
  if (kept.kind == FrameKind::credit) credits_ += one;
  if (kept.is_refusal) refusals_ += one;
}

std::uint64_t SentFrames::keep(UnacknowledgedFrame&& frame) {
  if (end_ - first_ == ring_.size()) {
    std::vector<UnacknowledgedFrame> larger(std::max(smallest_ring, 2 * ring_.size()));
    for (std::uint64_t number = first_; number != end_; ++number)
      larger[number & (larger.size() - 1)] = std::move(at(number));
    ring_ = std::move(larger);
  }
  count(frame, 1);
  at(end_) = std::move(frame);
  return end_++;
}

OutboundFrame SentFrames::next() {
  UnacknowledgedFrame& whole = at(unsent_++);
  OutboundFrame frame{.head = whole.frame.head, .attachments = whole.frame.attachments, .sent = {}};
  auto first = std::exchange(whole.frame.sent, nullptr);
  if (whole.check == nullptr && !whole.ends_when_sent) {
    frame.sent = std::move(first);
    return frame;
  }
  frame.sent = [first = std::move(first), check = whole.check,
                call = whole.ends_when_sent ? whole.notification : nullptr]() mutable {
    if (first) first();
    if (check != nullptr) (*check)();
    if (call != nullptr) call->finish(PendingCall::Reply{});
  };
  return frame;
}

std::shared_ptr<PendingCall> SentFrames::drop_first() {
  UnacknowledgedFrame& kept = at(first_++);
  unsent_ = std::max(unsent_, first_);
  count(kept, -1);
  auto notification = std::move(kept.notification);
  if (first_ == end_ && ring_.size() > largest_idle_ring) {
    std::vector<UnacknowledgedFrame>().swap(ring_);
    return notification;
  }
  const OutboundFrame dropped = std::move(kept.frame);
  kept.check = nullptr;
  return notification;
}

// The end of a notification may run code that sends further frames.
void SentFrames::acknowledge(std::uint64_t count) {
  while (first_ < count && first_ != end_)
    if (const auto notification = drop_first()) notification->finish(PendingCall::Reply{});
}

void SentFrames::withdraw(std::uint64_t number) {
  if (number < first_) return;
  UnacknowledgedFrame& kept = at(number);
  count(kept, -1);
  kept.kind = FrameKind::cancel;
  kept.frame = OutgoingMessage::plain(FrameKind::cancel, kept.call_id);
  kept.check = nullptr;
  kept.is_withdrawn = true;
  count(kept, 1);
}

std::vector<std::shared_ptr<PendingCall>> SentFrames::notifications() const {
  std::vector<std::shared_ptr<PendingCall>> calls;
  for (std::uint64_t number = first_; number != end_; ++number)
    if (at(number).notification != nullptr) calls.push_back(at(number).notification);
  return calls;
}

std::vector<std::uint64_t> SentFrames::withdrawn_from(std::uint64_t number) const {
  std::vector<std::uint64_t> ids;
  for (number = std::max(number, first_); number < end_; ++number)
    if (at(number).is_withdrawn) ids.push_back(at(number).call_id);
  return ids;
}

void SentFrames::clear(const std::optional<Error>& cause, const Error& reason) {
  while (first_ != end_)
    if (const auto notification = drop_first()) notification->lose(cause, reason.kind(), reason.what());
}

}  // namespace weft::rpc

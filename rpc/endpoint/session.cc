#include <weft/rpc/endpoint/session.h>

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/endpoint/link.h>

#include <algorithm>

namespace weft::rpc {

Session::Session(AgentId peer, std::uint64_t id_seed, std::uint64_t max_kept,
                 std::shared_ptr<std::atomic<std::uint64_t>> kept_total, std::uint64_t max_kept_total)
    : peer_(std::move(peer)),
      id_seed_(id_seed),
      max_kept_(max_kept),
      kept_total_(std::move(kept_total)),
      max_kept_total_(max_kept_total),
      unsent_(kept_.end()),
      asked_(id_seed),
      serving_(id_seed) {}

Session::~Session() { *kept_total_ -= kept_bytes_; }

bool Session::used() const {
  MutexLock lock(mutex_);
  return first_ != 0 || !kept_.empty() || accepted_ != 0 || !waiting_.empty();
}

bool Session::fresh() const {
  MutexLock lock(mutex_);
  return first_ == 0 && kept_.empty();
}

// --- Sending ---

void Session::submit(std::shared_ptr<PendingCall> call) {
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mutex_);
    if (!ended_) {
      link = link_.lock();
      const bool at_once =
          link != nullptr && waiting_.empty() && link->is_open() && link->loop()->running_here();
      if (!at_once) waiting_.push(std::exchange(call, nullptr));
    }
  }
  if (call != nullptr) {
    link != nullptr ? link->enter(call) : call->lose(ErrorKind::peer_lost, "the peer is gone");
  } else if (link != nullptr) {
    link->loop()->dispatch([link] { link->send_waiting(); });
  }
}

std::shared_ptr<PendingCall> Session::next_call(const Link& link) {
  MutexLock lock(mutex_);
  if (waiting_.empty() || in_use_ != &link) return nullptr;
  return waiting_.pop();
}

std::uint64_t Session::keep(Frame&& frame) {
  if (frame.is_bounded()) {
    kept_bytes_ += frame.bytes;
    *kept_total_ += frame.bytes;
  }
  full_ = kept_bytes_ >= max_kept_;
  kept_.push_back(std::move(frame));
  if (unsent_ == kept_.end()) --unsent_;
  return end_of_kept() - 1;
}

Session::Kept Session::request(PendingCall::Sealed&& sealed, Asked asked, const Link& link,
                               bool ends_when_sent) {
  const std::shared_ptr<PendingCall> call = asked.call;
  {
    MutexLock lock(mutex_);
    if (!ended_) {
      asked.number = keep({.frame = std::move(sealed.frame),
                           .check = std::move(sealed.check),
                           .call_id = call->id(),
                           .bytes = asked.bytes,
                           .kind = FrameKind::request,
                           .notifies = call->notify(),
                           .ends_when_sent = ends_when_sent,
                           .counts = !call->background()});
      asked_.insert(call->id(), std::move(asked));
      return {Keep::yes, next_if_last(&link)};
    }
  }
  call->lose(ErrorKind::peer_lost, "the peer is gone");
  return {Keep::over};
}

Session::Kept Session::answer(std::uint64_t call_id, OutboundFrame&& frame, const Link* link) {
  const std::uint64_t bytes = frame.bytes();
  std::shared_ptr<Link> other;
  Kept kept;
  {
    MutexLock lock(mutex_);
    if (ended_) return {Keep::over};
    keep({.frame = std::move(frame), .call_id = call_id, .bytes = bytes, .kind = FrameKind::reply});
    kept.next = next_if_last(link);
    if (in_use_ == nullptr && kept_bytes_ > std::max(bytes, max_kept_) && *kept_total_ > max_kept_total_)
      kept.keep = Keep::too_many;
    if (!kept.next) other = link_.lock();
  }
  if (other != nullptr) Link::transmit_soon(other);
  return kept;
}

Session::Next Session::take_next() {
  Frame& kept = *unsent_++;
  OutboundFrame frame;
  frame.head = kept.frame.head;
  frame.attachments = kept.frame.attachments;
  if (!std::exchange(kept.transmitted, true)) {
    frame.sent = std::move(kept.frame.sent);
  } else {
    remove_flag(frame.head.bytes(), frame_flags::on_lanes);  // the flag is that of the previous link
    if (kept.ends_when_sent) {
      frame.sent = [self = shared_from_this(), check = kept.check, id = kept.call_id] {
        if (check != nullptr) (*check)();
        self->notified(id);
      };
    } else if (kept.check != nullptr) {
      frame.sent = [check = kept.check] { (*check)(); };
    }
  }
  return {std::move(frame), next_++, kept.counts};
}

std::optional<Session::Next> Session::next_if_last(const Link* link) {
  if (link == nullptr || in_use_ != link || next_ + 1 != end_of_kept()) return std::nullopt;
  return take_next();
}

std::optional<Session::Next> Session::next(const Link& link) {
  MutexLock lock(mutex_);
  if (ended_ || in_use_ != &link || unsent_ == kept_.end()) return std::nullopt;
  return take_next();
}

std::shared_ptr<Link> Session::drop_until(std::uint64_t count, std::list<Frame>& dropped) {
  for (; first_ < count && !kept_.empty(); ++first_) {
    const auto first = kept_.begin();
    if (first->is_bounded()) {
      kept_bytes_ -= first->bytes;
      *kept_total_ -= first->bytes;
    }
    if (unsent_ == first) ++unsent_;
    dropped.splice(dropped.end(), kept_, first);
  }
  next_ = std::max(next_, first_);
  const bool full = kept_bytes_ >= max_kept_;
  return full_.exchange(full) && !full ? link_.lock() : nullptr;
}

void Session::finish_notifications(const std::list<Frame>& dropped) {
  for (const Frame& frame : dropped)
    if (frame.notifies) notified(frame.call_id);
}

bool Session::acknowledged(std::uint64_t count) {
  std::list<Frame> dropped;  // destroyed without the mutex
  std::shared_ptr<Link> has_room;
  {
    MutexLock lock(mutex_);
    if (ended_) return true;
    if (count > end_of_kept()) return false;
    has_room = drop_until(count, dropped);
  }
  finish_notifications(dropped);
  if (has_room != nullptr) Link::send_held_soon(has_room);
  return true;
}

bool Session::acknowledged_by_request(std::uint32_t low_bits) {
  std::uint64_t first = 0;
  {
    MutexLock lock(mutex_);
    first = first_;
  }
  const auto ahead = static_cast<std::int32_t>(low_bits - static_cast<std::uint32_t>(first));
  return ahead <= 0 || acknowledged(first + static_cast<std::uint32_t>(ahead));
}

std::optional<Session::Asked> Session::take(std::uint64_t call_id) {
  MutexLock lock(mutex_);
  return asked_.take(call_id);
}

std::optional<Session::Asked> Session::answered(std::uint64_t call_id) {
  std::list<Frame> dropped;
  std::optional<Asked> asked;
  std::shared_ptr<Link> has_room;
  {
    MutexLock lock(mutex_);
    asked = asked_.take(call_id);
    if (asked) has_room = drop_until(asked->number + 1, dropped);
  }
  finish_notifications(dropped);
  if (has_room != nullptr) Link::send_held_soon(has_room);
  return asked;
}

void Session::notified(std::uint64_t call_id) {
  const auto asked = take(call_id);
  if (asked && asked->call != nullptr) asked->call->finish(PendingCall::Reply{});
}

void Session::cancel(std::uint64_t call_id) {
  OutboundFrame frame = OutgoingMessage::plain(FrameKind::cancel, call_id);
  add_flag(frame.head.bytes(), frame_flags::resumable);
  std::shared_ptr<Link> link;
  {
    MutexLock lock(mutex_);
    Asked* asked = asked_.find(call_id);
    if (ended_ || asked == nullptr || asked->call == nullptr) return;
    asked->call = nullptr;  // the answer will still arrive and return the credit
    const std::uint64_t bytes = frame.bytes();
    keep({.frame = std::move(frame), .call_id = call_id, .bytes = bytes, .kind = FrameKind::cancel});
    link = link_.lock();
  }
  if (link != nullptr) Link::transmit_soon(link);
}

std::uint64_t Session::acknowledged_frames() const {
  MutexLock lock(mutex_);
  return first_;
}

bool Session::awaits(std::uint64_t call_id) const {
  MutexLock lock(mutex_);
  return asked_.contains(call_id);
}

// --- Receiving ---

std::uint64_t Session::accepted() const {
  MutexLock lock(mutex_);
  return accepted_;
}

Session::Arrival Session::arrive(std::uint64_t number) {
  MutexLock lock(mutex_);
  if (number > accepted_) return Arrival::gap;
  if (number < accepted_) return Arrival::repeated;
  ++accepted_;
  return Arrival::accepted;
}

void Session::serve(std::uint64_t call_id, std::weak_ptr<IncomingCall> call) {
  MutexLock lock(mutex_);
  if (!ended_ && !serving_.contains(call_id)) serving_.insert(call_id, std::move(call));
}

void Session::served(std::uint64_t call_id) {
  MutexLock lock(mutex_);
  serving_.take(call_id);
}

std::shared_ptr<IncomingCall> Session::serving(std::uint64_t call_id) const {
  MutexLock lock(mutex_);
  const auto* found = const_cast<IdMap<std::weak_ptr<IncomingCall>>&>(serving_).find(call_id);
  return found == nullptr ? nullptr : found->lock();
}

// --- Links ---

std::optional<std::vector<std::uint64_t>> Session::use(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  if (ended_) return std::nullopt;
  const auto used = link_.lock();
  if (used != nullptr) {
    if (used != link) others_.push_back(link);
    return std::nullopt;
  }
  link_ = link;
  in_use_ = link.get();
  unsent_ = kept_.begin();
  next_ = first_;
  std::vector<std::uint64_t> charged;
  for (const Frame& kept : kept_) {
    Asked* asked = kept.kind == FrameKind::request ? asked_.find(kept.call_id) : nullptr;
    if (asked == nullptr) continue;
    asked->charged = link;
    charged.push_back(kept.bytes);
  }
  return charged;
}

void Session::leave(const Link& link, std::vector<std::shared_ptr<PendingCall>> held) {
  std::shared_ptr<Link> successor;
  std::optional<Error> ended;
  {
    MutexLock lock(mutex_);
    ended = ended_;
    for (; !ended && !held.empty(); held.pop_back()) waiting_.push_front(std::move(held.back()));
    std::erase_if(others_, [&](const auto& weak) {
      const auto other = weak.lock();
      return other == nullptr || other.get() == &link;
    });
    const auto used = link_.lock();
    if (used != nullptr && used.get() != &link) {
      successor = used;  // takes over the held calls
    } else {
      link_.reset();
      in_use_ = nullptr;
      if (!others_.empty()) {
        successor = others_.front().lock();
        others_.erase(others_.begin());
      }
    }
  }
  for (const auto& call : held) call->lose(ended->kind(), ended->what());
  if (successor != nullptr) successor->loop()->post([successor] { successor->begin_session(); });
}

// --- Its end ---

void Session::end(const Error& reason, const std::optional<Error>& cause) {
  std::vector<std::pair<std::uint64_t, Asked>> asked;
  std::vector<std::pair<std::uint64_t, std::weak_ptr<IncomingCall>>> serving;
  Fifo<std::shared_ptr<PendingCall>> waiting;
  std::list<Frame> kept;
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = reason;
    is_over_ = true;
    asked = asked_.take_all();
    serving = serving_.take_all();
    waiting = std::exchange(waiting_, {});
    kept.swap(kept_);
    *kept_total_ -= std::exchange(kept_bytes_, 0);
    unsent_ = kept_.end();
    link_.reset();
    in_use_ = nullptr;
    others_.clear();
  }
  for (const auto& [id, one] : asked)
    if (one.call != nullptr) one.call->lose(cause, reason.kind(), reason.what());
  for (const auto& call : waiting) call->lose(cause, reason.kind(), reason.what());
  // Notifications are served even if their sender is gone.
  for (const auto& [id, weak] : serving)
    if (const auto call = weak.lock(); call != nullptr && !call->is_notification()) call->cancel();
}

void Session::fail_calls(const Error& error) {
  std::vector<std::shared_ptr<PendingCall>> calls;
  {
    MutexLock lock(mutex_);
    asked_.for_each([&](std::uint64_t, const Asked& asked) {
      if (asked.call != nullptr) calls.push_back(asked.call);
    });
    while (!waiting_.empty()) calls.push_back(waiting_.pop());
  }
  std::sort(calls.begin(), calls.end(), [](const auto& a, const auto& b) { return a->id() < b->id(); });
  for (const auto& call : calls) call->fail(error);
}

std::uint64_t Session::kept_bytes() const {
  std::uint64_t bytes = 0;
  MutexLock lock(mutex_);
  for (const Frame& kept : kept_) bytes += kept.frame.bytes();
  return bytes;
}

std::vector<std::shared_ptr<PendingCall>> Session::sent() const {
  std::vector<std::shared_ptr<PendingCall>> calls;
  MutexLock lock(mutex_);
  asked_.for_each([&](std::uint64_t, const Asked& asked) {
    if (asked.call != nullptr) calls.push_back(asked.call);
  });
  return calls;
}

std::vector<std::shared_ptr<PendingCall>> Session::waiting() const {
  MutexLock lock(mutex_);
  return {waiting_.begin(), waiting_.end()};
}

std::vector<std::shared_ptr<IncomingCall>> Session::orphans() const {
  std::vector<std::shared_ptr<IncomingCall>> calls;
  MutexLock lock(mutex_);
  serving_.for_each([&](std::uint64_t, const std::weak_ptr<IncomingCall>& weak) {
    if (auto call = weak.lock()) calls.push_back(std::move(call));
  });
  return calls;
}

}  // namespace weft::rpc

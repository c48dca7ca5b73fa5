// GroupCore: messages between two members, and values of all members.
#include <weft/parallel/collectives/internal/group/group_notices.h>

namespace weft::collectives {
namespace {

// The receiver of a message of at least this size reads it in the sender's memory, if it can.
constexpr std::size_t min_lent_bytes = 16 << 10;

}  // namespace

// --- Messages between two members ---

rpc::Future<void> GroupCore::send(int to, Message message) {
  rpc::Promise<void> promise;
  const std::string what =
      "send(" + message.type + ", to " + std::to_string(to) + ") at " + rpc::site_text(message.site);
  promise.on_cancel([weak = weak_from_this(), what] {
    if (const auto self = weak.lock()) self->abort(self->describe(self->rank_) + " aborted " + what);
  });
  auto future = promise.future();
  on_loop([self = shared_from_this(), to, what, message = std::move(message),
           promise = std::move(promise)]() mutable {
    if (self->ended_) return promise.fail(*self->ended_);
    if (self->left_.contains(to))
      return promise.fail(
          rpc::Error(rpc::ErrorKind::shut_down, self->prefix() + self->describe(to) + " has left; " + what));
    const std::uint64_t number = self->sends_++;
    const auto deadline = rpc::later(self->loop_->now(), message.timeout.value_or(self->options_.timeout));
    const auto ticket = self->recorder_.begin({.kind = FlightKind::send,
                                               .meaning = message.type,
                                               .site = message.site,
                                               .bytes = message.bytes.size(),
                                               .peer = to,
                                               .tag = message.tag});
    self->sent_.emplace(number, Sent{to, what, deadline, std::move(promise), ticket});
    self->arm(deadline);
    const rpc::Peer& peer = self->peers_[static_cast<std::size_t>(to)];
    const auto offset =
        message.bytes.size() < min_lent_bytes ? std::nullopt : self->backend_->offset_for(to, message.bytes);
    auto taken = offset
                     ? peer.call<&GroupService::lent_message>(self->id_, message.tag, message.type, *offset,
                                                              std::uint64_t{message.bytes.size()})
                     : peer.call<&GroupService::message>(self->id_, message.tag, message.type, message.bytes);
    // `kept` keeps the memory of a lent message until the receiver has answered.
    std::move(taken).then([self, number, kept = message.bytes](rpc::Result<void>&& result) {
      self->turns_.run([self, number, result = std::move(result)]() mutable {
        self->send_over(number, std::move(result));
      });
    });
  });
  return future;
}

void GroupCore::send_over(std::uint64_t number, rpc::Result<void> result) {
  const auto found = sent_.find(number);
  if (found == sent_.end()) return;
  try {
    if (!result.ok()) std::rethrow_exception(result.error());
  } catch (const rpc::RemoteError& refused) {
    // The receiver has refused this message. shut_down: the receiver's group or agent has ended. The group
    // reports its own end, and the loss of the agent is about to be detected.
    if (refused.kind() == rpc::ErrorKind::shut_down) return;
    Sent sent = std::move(found->second);
    sent_.erase(found);
    recorder_.failed(sent.ticket, refused.detail());
    return sent.promise.fail(rpc::Error(refused.kind(), refused.detail()));
  } catch (...) {
    return not_sent(found->second.to, std::current_exception());
  }
  recorder_.done(found->second.ticket);
  rpc::Promise<void> promise = std::move(found->second.promise);
  sent_.erase(found);
  promise.complete(rpc::Result<void>{});
}

void GroupCore::decline(PointToPoint::Kind kind, std::optional<int> peer, std::uint64_t tag,
                        std::source_location site, const std::exception_ptr& why) {
  if (peer && (*peer < 0 || *peer >= size())) return;
  // No tensor has this type.
  Message message{tag, "refused: " + core_->hooks().text_of(why), site, {}, std::chrono::nanoseconds::max()};
  if (kind == PointToPoint::Kind::send)
    (void)send(*peer, std::move(message));
  else
    (void)receive(peer, std::move(message));
}

rpc::Future<int> GroupCore::receive(std::optional<int> from, Message message) {
  const std::size_t size = message.bytes.size();
  return take_message(from, std::move(message), size).then([](rpc::Result<Mailbox::Received>&& received) {
    return rpc::capture([&] { return std::move(received).get().from; });
  });
}

rpc::Future<rpc::Buffer> GroupCore::receive_any_size(int from, Message message) {
  return take_message(from, std::move(message), std::nullopt)
      .then([](rpc::Result<Mailbox::Received>&& received) {
        return rpc::capture([&] { return std::move(received).get().bytes; });
      });
}

rpc::Future<Mailbox::Received> GroupCore::receive_tensor(int from, Message message) {
  message.type = any_tensor;
  return take_message(from, std::move(message), std::nullopt);
}

rpc::Future<Mailbox::Received> GroupCore::take_message(std::optional<int> from, Message message,
                                                       std::optional<std::size_t> size) {
  auto promise = std::make_shared<rpc::Promise<Mailbox::Received>>();
  const std::string what = "recv(" + message.type + ", from " + (from ? std::to_string(*from) : "any") +
                           ") at " + rpc::site_text(message.site);
  promise->on_cancel([weak = weak_from_this(), what] {
    if (const auto self = weak.lock()) self->abort(self->describe(self->rank_) + " aborted " + what);
  });
  auto future = promise->future();
  on_loop([self = shared_from_this(), from, what, size, message = std::move(message), promise]() mutable {
    if (self->ended_) return promise->fail(*self->ended_);
    const auto deadline = rpc::later(self->loop_->now(), message.timeout.value_or(self->options_.timeout));
    const auto ticket = self->recorder_.begin({.kind = FlightKind::recv,
                                               .meaning = message.type,
                                               .site = message.site,
                                               .bytes = message.bytes.size(),
                                               .peer = from.value_or(-1),
                                               .tag = message.tag});
    Mailbox::Receive wanted{.from = from,
                            .tag = message.tag,
                            .type = message.type == any_tensor ? std::nullopt : std::optional(message.type),
                            .into = message.bytes.data(),
                            .size = size,
                            .what = what,
                            .deadline = deadline};
    wanted.done = [self, promise, ticket, kept = message.bytes](rpc::Result<Mailbox::Received> result) {
      if (result.ok()) self->recorder_.received(ticket, result.value().from);
      if (!result.ok()) self->note_end(ticket, result.error());
      promise->complete(std::move(result));
    };
    self->mailbox_.receive(std::move(wanted));
    self->arm(deadline);
    for (const int rank : std::set(self->left_))
      if (self->mailbox_.awaits(rank)) self->has_left(rank);
  });
  return future;
}

rpc::Future<void> GroupCore::message(const rpc::AgentId& from, std::uint64_t tag, std::string type,
                                     rpc::Buffer bytes, bool lent) {
  const int rank = rank_of(from);
  if (rank < 0)
    return rpc::Future<void>::made(std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::permission_denied, prefix() + from.name + " is not a member")));
  auto promise = std::make_shared<rpc::Promise<void>>();
  auto future = promise->future();
  turns_.run([self = shared_from_this(), promise, rank, tag, type = std::move(type), bytes = std::move(bytes),
              lent]() mutable {
    if (self->ended_) return promise->fail(*self->ended_);
    self->mailbox_.deliver(
        {.from = rank,
         .tag = tag,
         .type = std::move(type),
         .bytes = std::move(bytes),
         .taken = [promise](rpc::Result<void> taken) { promise->complete(std::move(taken)); },
         .lent = lent});
  });
  return future;
}

rpc::Future<void> GroupCore::lent_message(const rpc::AgentId& from, std::uint64_t tag, std::string type,
                                          std::uint64_t offset, std::uint64_t bytes) {
  auto memory = rpc::capture([&] {
    const int rank = rank_of(from);
    return rank < 0 ? rpc::Buffer{} : backend_->memory_of(rank, offset, bytes);
  });
  if (!memory.ok()) return rpc::Future<void>::made(rpc::Result<void>(memory.error()));
  return message(from, tag, std::move(type), std::move(memory).get(), true);
}

// --- Values of all members ---

rpc::Future<ValueRounds::Values> GroupCore::give(RoundKey round, std::string meaning,
                                                 std::source_location where, rpc::Buffer value,
                                                 bool wants_all,
                                                 std::optional<std::chrono::nanoseconds> timeout) {
  const std::string site = rpc::site_text(where);
  rpc::Promise<ValueRounds::Values> promise;
  promise.on_cancel([weak = weak_from_this(), what = meaning + " at " + site] {
    if (const auto self = weak.lock()) self->abort(self->describe(self->rank_) + " aborted " + what);
  });
  auto future = promise.future();
  on_loop([self = shared_from_this(), round = std::move(round), meaning = std::move(meaning), site, where,
           value = std::move(value), wants_all, limit = timeout.value_or(options_.timeout),
           promise = std::move(promise)]() mutable {
    if (self->ended_) return promise.fail(*self->ended_);
    if (self->given_.contains(round))
      return promise.fail(rpc::Error(rpc::ErrorKind::invalid_argument,
                                     self->prefix() + meaning + " at " + site +
                                         ": a launch of this name already waits for other ranks: use another "
                                         "name, or wait until that launch has begun"));
    std::optional<FlightRecorder::Ticket> ticket;
    if (round.launch.empty())
      ticket = self->recorder_.begin({.kind = FlightKind::values,
                                      .sequence = round.number,
                                      .meaning = meaning,
                                      .site = where,
                                      .bytes = value.size()});
    // Rank 0 names the missing members; a member that gets no answer from rank 0 for some more time reports
    // rank 0 as missing.
    const auto overdue = rpc::later(rpc::later(self->loop_->now(), limit), timeout_for_answers);
    self->given_.emplace(round, Given{meaning + " at " + site, overdue, std::move(promise), ticket});
    if (self->rank_ != 0) self->arm(overdue);
    const auto answered = [self, round](rpc::Result<ValueRounds::Values>&& values) {
      self->turns_.run([self, round, values = std::move(values)]() mutable {
        self->value_over(round, std::move(values));
      });
    };
    if (self->rank_ == 0)
      return self
          ->take_value(0, round, std::move(meaning), std::move(site), std::move(value), wants_all, limit)
          .then(answered);
    self->peers_.front()
        .call<&GroupService::give>(self->id_, round, meaning, site, value, wants_all, limit.count())
        .then(answered);
  });
  return future;
}

void GroupCore::value_over(const RoundKey& round, rpc::Result<ValueRounds::Values> values) {
  const auto found = given_.find(round);
  if (found == given_.end()) return;
  if (!values.ok()) {
    try {
      std::rethrow_exception(values.error());
    } catch (const rpc::RemoteError& refused) {
      // The signatures differ. shut_down: the group or rank 0's agent has ended. The group reports its own
      // end, and the loss of the agent is about to be detected.
      if (refused.kind() == rpc::ErrorKind::shut_down) return;
      values = std::make_exception_ptr(rpc::Error(refused.kind(), refused.detail()));
    } catch (...) {
      if (rank_ != 0) return not_sent(0, std::current_exception());
    }
  }
  if (const auto ticket = found->second.ticket) note_end(*ticket, values.ok() ? nullptr : values.error());
  rpc::Promise<ValueRounds::Values> promise = std::move(found->second.promise);
  given_.erase(found);
  promise.complete(std::move(values));
}

rpc::Future<ValueRounds::Values> GroupCore::value(const rpc::AgentId& from, RoundKey round,
                                                  std::string meaning, std::string site, rpc::Buffer bytes,
                                                  bool wants_all, std::chrono::nanoseconds limit) {
  const int rank = rank_of(from);
  if (rank < 0)
    return rpc::Future<ValueRounds::Values>::made(std::make_exception_ptr(
        rpc::Error(rpc::ErrorKind::permission_denied, prefix() + from.name + " is not a member")));
  return take_value(rank, std::move(round), std::move(meaning), std::move(site), std::move(bytes), wants_all,
                    limit);
}

rpc::Future<ValueRounds::Values> GroupCore::take_value(int from, RoundKey round, std::string meaning,
                                                       std::string site, rpc::Buffer bytes, bool wants_all,
                                                       std::chrono::nanoseconds limit) {
  auto promise = std::make_shared<rpc::Promise<ValueRounds::Values>>();
  auto future = promise->future();
  turns_.run([self = shared_from_this(), promise, from, round = std::move(round),
              meaning = std::move(meaning), site = std::move(site), bytes = std::move(bytes), wants_all,
              limit]() mutable {
    if (self->ended_) return promise->fail(*self->ended_);
    const auto deadline = rpc::later(self->loop_->now(), limit);
    self->values_.give(from, round,
                       {.meaning = std::move(meaning),
                        .site = std::move(site),
                        .bytes = std::move(bytes),
                        .wants_all = wants_all,
                        .deadline = deadline,
                        .answer = [promise](rpc::Result<ValueRounds::Values> values) {
                          promise->complete(std::move(values));
                        }});
    self->arm(deadline);
    for (const int rank : std::set(self->left_))
      if (self->values_.awaits(rank)) self->has_left(rank);
  });
  return future;
}

}  // namespace weft::collectives

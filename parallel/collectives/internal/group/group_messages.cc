#include <weft/parallel/collectives/internal/group/group_messages.h>

#include <algorithm>

namespace weft::collectives {
namespace {

// The receiver of a message of at least this size reads it in the sender's memory, if it can.
constexpr std::size_t min_lent_bytes = 16 << 10;

}  // namespace

rpc::Future<void> GroupMessages::send(int to, GroupMessage message) {
  rpc::Promise<void> promise;
  const std::string what =
      "send(" + message.type + ", to " + std::to_string(to) + ") at " + message.site.text();
  failure_.abort_on_cancel(promise, what);
  auto future = promise.future();
  group_.post([this, alive = group_.shared_from_this(), to, what, message = std::move(message),
               promise = std::move(promise)]() mutable { send_now(to, what, message, std::move(promise)); });
  return future;
}

void GroupMessages::send_now(int to, const std::string& what, const GroupMessage& message,
                             rpc::Promise<void> promise) {
  if (failure_.error()) return promise.fail(*failure_.error());
  if (failure_.ranks_that_left().contains(to))
    return promise.fail(group_.error(rpc::ErrorKind::shut_down, group_.describe(to) + " has left; " + what));
  const std::uint64_t number = sends_++;
  const auto deadline = group_.deadline_of(group_.wait_limit(message.timeout));
  const auto ticket = group_.recorder().begin({.kind = FlightKind::send,
                                               .meaning = message.type,
                                               .site = message.site,
                                               .bytes = message.bytes.size(),
                                               .peer = to,
                                               .tag = message.tag});
  sent_.emplace(number, SentMessage{to, what, deadline, std::move(promise), ticket});
  failure_.arm(deadline);
  const rpc::Peer& peer = group_.peer(to);
  const auto offset =
      message.bytes.size() < min_lent_bytes ? std::nullopt : backend_.offset_for(to, message.bytes);
  auto taken = offset
                   ? peer.call<&GroupService::lent_message>(group_.id(), message.tag, message.type, *offset,
                                                            std::uint64_t{message.bytes.size()})
                   : peer.call<&GroupService::message>(group_.id(), message.tag, message.type, message.bytes);
  // `kept` keeps the memory of a lent message until the receiver has answered.
  std::move(taken).then(
      [this, alive = group_.shared_from_this(), number, kept = message.bytes](rpc::Result<void>&& result) {
        group_.run([this, alive, number, result = std::move(result)] { send_over(number, result); });
      });
}

void GroupMessages::send_over(std::uint64_t number, const rpc::Result<void>& result) {
  const auto found = sent_.find(number);
  if (found == sent_.end()) return;
  rpc::Result<void> outcome;
  try {
    if (!result.ok()) std::rethrow_exception(result.error());
  } catch (const rpc::RemoteError& refused) {
    if (refused.kind() == rpc::ErrorKind::shut_down) return failure_.refused_by(found->second.to);
    outcome = std::make_exception_ptr(rpc::Error(refused.kind(), refused.detail()));
  } catch (...) {
    return failure_.not_sent(found->second.to, std::current_exception());
  }
  SentMessage sent = std::move(found->second);
  sent_.erase(found);
  group_.note_end(sent.ticket, outcome.ok() ? nullptr : outcome.error());
  sent.promise.complete(std::move(outcome));
}

void GroupMessages::decline(PointToPoint::Kind kind, std::optional<int> peer, std::uint64_t tag,
                            rpc::Site site, const std::exception_ptr& why) {
  if (peer && (*peer < 0 || *peer >= group_.size())) return;
  // No tensor has this type.
  GroupMessage message{tag, "refused: " + group_.text_of(why), site, {}, std::chrono::nanoseconds::max()};
  if (kind == PointToPoint::Kind::send)
    (void)send(*peer, std::move(message));
  else
    (void)receive(peer, std::move(message));
}

rpc::Future<int> GroupMessages::receive(std::optional<int> from, GroupMessage message) {
  const std::size_t size = message.bytes.size();
  return take(from, std::move(message), size).then([](rpc::Result<Mailbox::Received>&& received) {
    return rpc::capture([&] { return std::move(received).get().from; });
  });
}

rpc::Future<rpc::Buffer> GroupMessages::receive_any_size(int from, GroupMessage message) {
  return take(from, std::move(message), std::nullopt).then([](rpc::Result<Mailbox::Received>&& received) {
    return rpc::capture([&] { return std::move(received).get().bytes; });
  });
}

rpc::Future<Mailbox::Received> GroupMessages::receive_tensor(int from, GroupMessage message) {
  message.type = any_tensor;
  return take(from, std::move(message), std::nullopt);
}

rpc::Future<Mailbox::Received> GroupMessages::take(std::optional<int> from, GroupMessage message,
                                                   std::optional<std::size_t> size) {
  auto promise = std::make_shared<rpc::Promise<Mailbox::Received>>();
  const std::string what = "recv(" + message.type + ", from " + (from ? std::to_string(*from) : "any") +
                           ") at " + message.site.text();
  failure_.abort_on_cancel(*promise, what);
  auto future = promise->future();
  group_.post([this, alive = group_.shared_from_this(), from, what, size, message = std::move(message),
               promise]() mutable {
    if (failure_.error()) return promise->fail(*failure_.error());
    const auto deadline = group_.deadline_of(group_.wait_limit(message.timeout));
    const auto ticket = group_.recorder().begin({.kind = FlightKind::recv,
                                                 .meaning = message.type,
                                                 .site = message.site,
                                                 .bytes = message.bytes.size(),
                                                 .peer = from.value_or(-1),
                                                 .tag = message.tag});
    Mailbox::Receive wanted{.from = from,
                            .tag = message.tag,
                            .type = message.type == any_tensor ? std::nullopt : std::optional(message.type),
                            .any_shape = message.any_shape,
                            .into = message.bytes.data(),
                            .size = size,
                            .what = what,
                            .deadline = deadline};
    wanted.done = [this, alive, promise, ticket,
                   kept = message.bytes](rpc::Result<Mailbox::Received> result) {
      if (result.ok()) group_.recorder().received(ticket, result.value().from);
      if (!result.ok()) group_.note_end(ticket, result.error());
      promise->complete(std::move(result));
    };
    mailbox_.receive(std::move(wanted));
    failure_.arm(deadline);
    failure_.check_left();
  });
  return future;
}

rpc::Future<void> GroupMessages::deliver(int from, std::uint64_t tag, std::string type, rpc::Buffer bytes,
                                         bool lent) {
  auto promise = std::make_shared<rpc::Promise<void>>();
  auto future = promise->future();
  group_.run([this, alive = group_.shared_from_this(), promise, from, tag, type = std::move(type),
              bytes = std::move(bytes), lent]() mutable {
    if (failure_.error()) return promise->fail(*failure_.error());
    mailbox_.deliver({.from = from,
                      .tag = tag,
                      .type = std::move(type),
                      .bytes = std::move(bytes),
                      .taken = [promise](rpc::Result<void> taken) { promise->complete(std::move(taken)); },
                      .lent = lent});
  });
  return future;
}

rpc::Future<void> GroupMessages::deliver_lent(int from, std::uint64_t tag, std::string type,
                                              std::uint64_t offset, std::uint64_t bytes) {
  auto memory = rpc::capture([&] { return backend_.memory_of(from, offset, bytes); });
  if (!memory.ok()) return rpc::Future<void>::made(rpc::Result<void>(memory.error()));
  return deliver(from, tag, std::move(type), std::move(memory).get(), true);
}

// Not the answers to sent messages, which still arrive.
bool GroupMessages::awaits(int rank, std::uint64_t) { return mailbox_.awaits(rank); }

rpc::Clock::time_point GroupMessages::check_deadlines(rpc::Clock::time_point now) {
  auto next = rpc::Clock::time_point::max();
  std::string late;
  const auto check = [&](const auto& operation) {
    next = std::min(next, operation.deadline);
    if (operation.deadline <= now && late.empty()) late = operation.what;
  };
  for (const Mailbox::Receive& receive : mailbox_.receives()) check(receive);
  for (const auto& [number, sent] : sent_) check(sent);
  if (!late.empty())
    failure_.fail_now(rpc::ErrorKind::deadline_exceeded,
                      group_.describe(group_.rank()) + ": " + late + " did not complete in time");
  return next;
}

void GroupMessages::fail(const rpc::Error& error) {
  mailbox_.fail(error);
  for (auto& [number, sent] : std::exchange(sent_, {})) {
    group_.recorder().failed(sent.ticket, error.what());
    sent.promise.fail(error);
  }
}

}  // namespace weft::collectives

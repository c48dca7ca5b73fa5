#include <weft/rpc/stream/reader.h>

#include <weft/rpc/core/while_alive.h>
#include <weft/rpc/stream/served_stream.h>
#include <weft/rpc/stream/stream_table.h>

namespace weft::rpc::detail {
namespace {

constexpr std::size_t max_pulls_in_flight = 2;  // pulls of one stream in flight

[[noreturn]] void malformed(const std::string& what) {
  throw Error(ErrorKind::protocol_error, "malformed reply of a stream: " + what);
}

// Converts the error of a pull into the error of its stream.
std::exception_ptr explain_failure(const std::exception_ptr& error) {
  const auto own = is_remote(error) ? std::nullopt : as_error(error);
  // That incarnation existed when it handed the stream over, so it is lost.
  if (own && (own->kind() == ErrorKind::unavailable || own->kind() == ErrorKind::not_found))
    return stream_error(ErrorKind::peer_lost, own->what());
  return error;
}

}  // namespace

void StreamReader::set_window(const StreamWindow& window) {
  MutexLock lock(mutex_);
  if (next_pull_ != 0) return;
  window_ = {std::max<std::uint64_t>(window.items, 1), std::max<std::uint64_t>(window.bytes, 1)};
}

Future<StreamReader::Item> StreamReader::next() {
  std::optional<Future<Item>> future;
  {
    MutexLock lock(mutex_);
    if (pending_next_) return refused_next<Item>();
    if (auto now = take()) {
      future = Future<Item>::made(std::move(*now));
    } else {
      pending_next_.emplace(source_.calls().route()->loop());
      future = pending_next_->future();
    }
  }
  pull();
  return std::move(*future);
}

std::optional<Result<StreamReader::Item>> StreamReader::take() {
  if (closed_) return stream_end<Item>(stream_closed());
  if (consumed_ == received_)
    return ended_ ? std::optional<Result<Item>>(stream_end<Item>(error_)) : std::nullopt;
  Batch& batch = batches_.front();
  Result<Item> item(Item(Raw{batch.message, batch.items.at(batch.taken++)}));
  ++consumed_;
  if (batch.taken == batch.count) {
    consumed_bytes_ += batch.bytes;
    held_bytes_ -= batch.held;
    batches_.pop_front();
  }
  return item;
}

// If the items that wait fill half of the window, no pull is sent. So, with a slow reader, replies are few
// and large.
void StreamReader::pull() {
  MutexLock lock(mutex_);
  if (pulling_) return;  // the other thread checks again
  pulling_ = true;
  while (!closed_ && !ended_ && pulls_in_flight_ < max_pulls_in_flight &&
         2 * (received_ - consumed_) <= window_.items - 1 && 2 * held_bytes_ < window_.bytes) {
    const std::uint64_t number = next_pull_++, items = consumed_ + window_.items,
                        bytes = consumed_bytes_ + window_.bytes;
    permitted_ = std::max(permitted_, items);
    ++pulls_in_flight_;
    lock.unlock();
    source_.calls().start(
        StreamTable::make_call(source_, StreamTable::next_method, {stream_, number, items, bytes}),
        while_alive(this, &StreamReader::pulled));
    lock.lock();
  }
  pulling_ = false;
}

StreamReader::Batch StreamReader::read(const PendingCall::Reply& reply) const {
  Batch batch;
  batch.message = reply;
  const ValueReader record = reply->result();
  ValueReader field;
  const auto find = [&](std::string_view name, std::size_t guess) -> ValueReader& {
    if (!record.find_field(name, guess, field)) malformed("'" + std::string(name) + "' is missing");
    return field;
  };
  batch.first = find("first", 0).get_uint();
  batch.items = find("items", 1);
  batch.count = find("count", 2).get_uint();
  batch.bytes = find("bytes", 3).get_uint();
  batch.last = find("end", 4).get_bool();
  if (batch.count > batch.items.size())
    malformed("it has " + std::to_string(batch.items.size()) + " items, and announces " +
              std::to_string(batch.count));
  batch.held = std::max(batch.bytes, reply->bytes());
  if (const ValueReader& error = find("error", 5); !error.is_nil()) {
    auto failure = Codec<StreamFailure>::decode(error);
    RemoteError remote(error_kind(failure.kind), failure.message, failure.worker, method_, failure.type);
    if (!failure.payload_type.empty() &&
        failure.payload_type.size() + failure.payload.size() <= max_error_payload)
      remote.set_payload(std::make_shared<const ErrorPayload>(
          ErrorPayload{std::move(failure.payload_type), std::move(failure.payload)}));
    batch.error = std::make_exception_ptr(remote);
  }
  return batch;
}

void StreamReader::accept(Batch batch) {
  if (batch.first != received_ || batch.count > permitted_ - received_)
    malformed(std::to_string(batch.count) + " items from item " + std::to_string(batch.first) +
              ", expected items from " + std::to_string(received_) + " to below " +
              std::to_string(permitted_));
  if (batch.count == 0 && !batch.last) malformed("neither items nor an end");
  ended_ = batch.last;
  error_ = batch.error;
  if (batch.count == 0) return;
  received_ += batch.count;
  held_bytes_ += batch.held;
  batches_.push_back(std::move(batch));
}

void StreamReader::pulled(Result<PendingCall::Reply> reply) {
  std::optional<Promise<Item>> pending;
  std::optional<Result<Item>> item;
  bool closes = false;
  {
    MutexLock lock(mutex_);
    --pulls_in_flight_;
    if (closed_ || ended_) return;  // ended: the reply to a second pull
    try {
      accept(read(std::move(reply).get()));
    } catch (const std::exception& error) {
      ended_ = true;
      error_ = explain_failure(std::current_exception());
      closes = dynamic_cast<const RemoteError*>(&error) == nullptr;  // the source does not know the failure
    }
    if (pending_next_) item = take();
    if (item) pending.swap(pending_next_);
  }
  if (closes) StreamTable::send_close(source_, stream_);
  if (pending) pending->complete(std::move(*item));
  pull();
}

void StreamReader::refuse_item(const Error& mismatch) {
  std::uint64_t number = 0;
  {
    MutexLock lock(mutex_);
    number = consumed_;
  }
  close();
  throw Error(mismatch.kind(),
              source_.calls().route()->peer_name() + ": " + method_ + ": item " + std::to_string(number) +
                  " of the stream: " + mismatch.what(),
              Execution::maybe_executed);
}

void StreamReader::close() {
  std::optional<Promise<Item>> pending;
  std::deque<Batch> dropped;  // destroyed after the lock is released
  bool closes = false;
  {
    MutexLock lock(mutex_);
    if (std::exchange(closed_, true)) return;
    pending.swap(pending_next_);
    dropped.swap(batches_);
    closes = !ended_;
  }
  if (closes) StreamTable::send_close(source_, stream_);
  if (pending) pending->fail(stream_closed());
}

}  // namespace weft::rpc::detail

// pump() runs on one thread at a time. It requests items from the source as long as may_ask(), and replies to
// a waiting pull as soon as may_answer(). A reply has all items that are available, up to the permitted items
// and bytes.
#include <weft/rpc/stream/served_stream.h>

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/stream/stream_table.h>

#include <algorithm>

namespace weft::rpc::detail {
namespace {

constexpr std::uint64_t max_items = 1024;     // of one reply
constexpr std::uint64_t max_bytes = 1 << 20;  // of one reply, unless a single item is larger
constexpr std::uint64_t least_bytes = 32;     // the minimum of a value in a list
constexpr std::size_t max_pulls = 64;         // that wait

StreamFailure describe_failure(const std::exception_ptr& error, const std::string& worker) {
  StreamFailure failure{.kind = static_cast<std::uint16_t>(ErrorKind::handler_failed),
                        .message = what_of(error),
                        .worker = worker};
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    failure.kind = static_cast<std::uint16_t>(known.kind());
    if (const auto& payload = known.payload()) {
      failure.payload_type = payload->type;
      failure.payload = payload->bytes;
    }
    if (const auto* remote = dynamic_cast<const RemoteError*>(&known)) {
      failure.message = remote->detail();
      failure.worker = remote->worker();  // on which the error occurred
      failure.type = remote->type();
    }
  } catch (...) {
  }
  return failure;
}

}  // namespace

void ServedStream::pull(const Call& call, std::uint64_t number, std::uint64_t items, std::uint64_t bytes) {
  std::exception_ptr refused;
  {
    MutexLock lock(mutex_);
    if (over_) {
      refused = why_over_ != nullptr ? why_over_ : stream_error(ErrorKind::not_found, "the stream has ended");
    } else if (number != next_pull_) {
      refused = stream_error(ErrorKind::permission_denied, "another peer already reads this stream");
    } else if (waiting_.size() >= max_pulls) {
      refused = stream_error(ErrorKind::resource_exhausted,
                             "more than " + std::to_string(max_pulls) + " pulls of one stream are pending");
    } else {
      ++next_pull_;
      items_ = std::max(items_, items);
      bytes_ = std::max(bytes_, bytes);
      waiting_.push_back(call);
    }
  }
  if (refused != nullptr) return call->fail(refused);
  pump();
}

void ServedStream::end(const std::exception_ptr& error) {
  std::deque<Call> waiting;
  std::uint64_t left = 0;
  {
    MutexLock lock(mutex_);
    if (std::exchange(over_, true)) return;
    why_over_ = error;
    waiting.swap(waiting_);
    if (!pumping_) {  // otherwise the pumping thread drops the items
      left = taken_ - sent_;
      sent_ = taken_;
    }
  }
  close_source();
  if (left != 0) drop(left);
  for (const auto& call : waiting) call->fail(error);
}

void ServedStream::arrived_item() {
  {
    MutexLock lock(mutex_);
    asking_ = false;
    ++taken_;
  }
  pump();
}

void ServedStream::arrived_end(std::exception_ptr error) {
  {
    MutexLock lock(mutex_);
    asking_ = false;
    ended_ = true;
    failure_ = std::move(error);
  }
  pump();
}

// Whether to request an item: the reader must permit it, and the items that this agent keeps must be within
// `limit_`. The sizes of items that were not sent are estimated from the items of the last reply. Until the
// first item is sent, only one item is kept.
bool ServedStream::may_ask() const {
  const std::uint64_t kept = taken_ - sent_;
  if (over_ || asking_ || ended_ || taken_ >= items_ || sent_bytes_ >= bytes_) return false;
  if (kept == 0) return true;
  if (item_bytes_ == 0 || kept >= limit_.items) return false;
  const std::uint64_t guessed = kept * item_bytes_;
  return guessed < limit_.bytes && sent_bytes_ + guessed < bytes_;
}

bool ServedStream::may_answer() const {
  if (over_ || waiting_.empty()) return false;
  return taken_ == sent_ ? ended_ : sent_bytes_ < bytes_;
}

// Collects the items that the source has available before it replies, so that a fast source causes few
// replies.
void ServedStream::pump() {
  MutexLock lock(mutex_);
  if (pumping_) return;  // the thread that pumps evaluates the state again before it stops
  pumping_ = true;
  bool has_answered = true;
  while (has_answered) {
    while (may_ask()) {
      asking_ = true;
      lock.unlock();
      ask();
      lock.lock();
    }
    has_answered = may_answer();
    if (has_answered) {
      const Call call = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      answer(call);
      lock.lock();
    }
  }
  const std::uint64_t left = over_ ? taken_ - sent_ : 0;
  sent_ += left;
  pumping_ = false;
  lock.unlock();
  if (left != 0) drop(left);
}

void ServedStream::answer(const Call& call) {
  Written written;
  call->reply([&](ValueWriter writer) { write(writer, written); });
  if (written.items != 0) drop(written.items);
  if (!written.is_last && written.items == 0)  // an item could not be encoded
    end(stream_error(ErrorKind::internal, "an item of the stream could not be sent"));
  if (written.is_last || written.items == 0)
    if (const auto table = table_.lock()) table->take(id_);
}

void ServedStream::write(ValueWriter writer, Written& written) {
  OutgoingMessage& message = writer.message();
  std::uint64_t first = 0, there = 0, room = 0;
  {
    MutexLock lock(mutex_);
    first = sent_;
    room = std::min(bytes_ - std::min(bytes_, sent_bytes_), max_bytes);
    there = std::min({taken_ - sent_, max_items, room / least_bytes + 1});
  }
  RecordWriter record = writer.set_record(6);
  record.field(0, "first").set_uint(first);
  const std::uint64_t begin = message.bytes();
  ListWriter items = record.field(1, "items").set_list(there);
  std::uint64_t count = 0;
  while (count < there && (count == 0 || message.bytes() - begin < room)) {
    encode(count, items[count]);
    ++count;
  }
  const std::uint64_t bytes = std::max<std::uint64_t>(message.bytes() - begin, count);
  record.field(2, "count").set_uint(count);
  record.field(3, "bytes").set_uint(bytes);
  std::exception_ptr failure;
  {
    MutexLock lock(mutex_);
    sent_ += count;
    sent_bytes_ += bytes;
    if (count != 0) item_bytes_ = std::max<std::uint64_t>(bytes / count, 1);
    written = {count, ended_ && taken_ == sent_};
    failure = written.is_last ? failure_ : nullptr;
  }
  record.field(4, "end").set_bool(written.is_last);
  ValueWriter error = record.field(5, "error");
  if (failure == nullptr) return error.set_nil();
  std::string worker;
  if (const auto table = table_.lock()) worker = table->name();
  Codec<StreamFailure>::encode(error, describe_failure(failure, worker));
}

}  // namespace weft::rpc::detail

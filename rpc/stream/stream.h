// Stream<T>: a sequence of values that comes bit by bit, in one program or from one agent to another.
//
//   rpc::Stream<int> ticks(int n) {                              // made by a coroutine that yields…
//     for (int i = 0; i < n; ++i) co_yield i;
//   }
//   auto [writer, stream] = rpc::make_channel<Quote>(16);        // …or written
//   co_await writer.write(quote);                                // waits for room
//
//   auto quotes = co_await peer.call<&Market::follow>("ACME");   // Stream<Quote>
//   while (auto quote = co_await quotes.next()) use(*quote);
//
// A stream is a result, a parameter, or part of a struct; std::move hands it over, once. Its items keep their
// order; each comes once, or the stream ends with an error. A reader that is slow makes its source wait
// (StreamOptions::window); one that lets go of its stream ends the source. Deadline and cancellation of the
// call that brought a stream are not the stream's (docs/streams.md). Thread-safety: one thread at a time;
// writers may be used from any.
#pragma once

#include <weft/rpc/stream/channel.h>
#include <weft/rpc/stream/generator.h>
#include <weft/rpc/stream/reader.h>
#include <weft/rpc/stream/stream_table.h>

namespace weft::rpc {

template <class T>
class [[nodiscard]] Stream {
 public:
  // The type of an item.
  using Item = T;
  using promise_type = detail::GeneratorPromise<T>;  // a function that returns a Stream may be a coroutine

  Stream() = default;  // not a stream: assign one first
  explicit Stream(std::shared_ptr<detail::StreamSource<T>> source) : source_(std::move(source)) {}
  Stream(Stream&& other) noexcept : source_(std::exchange(other.source_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    auto source = std::exchange(other.source_, nullptr);
    close();
    source_ = std::move(source);
    return *this;
  }
  ~Stream() { close(); }

  bool valid() const { return source_ != nullptr; }  // false: handed over, closed, or never made

  // The next item; nothing at the end. One at a time. An item that comes for a future that was dropped is
  // lost. Errors: what the source ended with, as a RemoteError where that is another agent; peer_lost or
  // shut_down with that agent; failed_precondition where this is no stream (any more).
  Future<std::optional<T>> next() {
    if (source_ != nullptr) return source_->next();
    return Future<std::optional<T>>::made(Result<std::optional<T>>(detail::stream_error(
        ErrorKind::failed_precondition, "not a stream: it was handed over, closed, or never made")));
  }
  // Nothing more is wanted. The destructor does the same.
  void close() {
    if (auto source = std::exchange(source_, nullptr)) source->close();
  }

  // Where a generator runs that is read in the program that made it: it resumes there and nowhere else. One
  // that is handed over runs where the handler ran that returned it, else on its agent's handler threads. The
  // executor outlives the stream. Nothing where it has one, or is no generator.
  Stream&& on(Executor& executor) && {
    if (source_ != nullptr) source_->bind({{std::shared_ptr<void>(), &executor}, nullptr, nullptr});
    return std::move(*this);
  }
  // What may be under way, instead of the agent's default. Before the first next() of a stream that has come
  // from another agent; nothing for others.
  Stream&& window(const StreamWindow& window) && {
    if (source_ != nullptr) source_->set_window(window);
    return std::move(*this);
  }

  // For the codec: to hand a stream over empties it, also where it is within a value that is only read.
  std::shared_ptr<detail::StreamSource<T>> hand_over() const { return std::exchange(source_, nullptr); }

 private:
  mutable std::shared_ptr<detail::StreamSource<T>> source_;
};

// The end of a channel that is written. Dropped before close(), it ends the stream with `aborted`: what is
// cut short is not taken for complete. Thread-safe.
template <class T>
class StreamWriter {
 public:
  StreamWriter() = default;
  explicit StreamWriter(std::shared_ptr<detail::Channel<T>> channel) : channel_(std::move(channel)) {}
  StreamWriter(StreamWriter&&) noexcept = default;
  StreamWriter& operator=(StreamWriter&& other) noexcept {
    drop();
    channel_ = std::move(other.channel_);
    return *this;
  }
  ~StreamWriter() { drop(); }

  // Done when the item has a place in the channel. Errors: cancelled once nobody reads any more;
  // resource_exhausted where an earlier write() still waits for room; failed_precondition after the end.
  Future<void> write(T item) {
    if (channel_ != nullptr) return channel_->write(std::move(item));
    return Future<void>::made(detail::stream_error(ErrorKind::failed_precondition, "not a writer"));
  }
  void close() { channel_->end(nullptr); }  // after what was written
  void fail(std::exception_ptr error) { channel_->end(std::move(error)); }
  template <class E>
  void fail(E error) {
    fail(std::make_exception_ptr(std::move(error)));
  }
  bool wanted() const { return channel_->wanted(); }  // somebody reads, or may begin to

 private:
  void drop() {
    if (channel_ != nullptr)
      channel_->end(
          detail::stream_error(ErrorKind::aborted, "the stream's writer was dropped before its end"));
  }
  std::shared_ptr<detail::Channel<T>> channel_;
};

// capacity: items that may wait in it, at least 1.
template <class T>
std::pair<StreamWriter<T>, Stream<T>> make_channel(std::size_t capacity) {
  auto channel = std::make_shared<detail::Channel<T>>(capacity);
  return {StreamWriter<T>(channel), Stream<T>(channel)};
}

namespace detail {

template <class T>
Stream<T> GeneratorPromise<T>::get_return_object() {
  return Stream<T>(
      std::make_shared<GeneratorSource<T>>(std::coroutine_handle<GeneratorPromise>::from_promise(*this)));
}

}  // namespace detail

template <class T>
struct Codec<Stream<T>> {
  static void describe(TypeText& text) {
    text << "stream<";
    Codec<T>::describe(text);
    text << ">";
  }
  static void encode(ValueWriter writer, const Stream<T>& stream) {
    auto source = stream.hand_over();
    if (source == nullptr)
      throw Error(ErrorKind::failed_precondition, "not a stream: it was handed over, closed, or never made");
    const auto table = detail::StreamTable::of(writer.message());
    auto served = std::make_shared<detail::ServedStreamOf<T>>(source, table->window());
    source->bind(table->home(writer.message()));
    const std::uint64_t id = table->hand_over(writer.message(), std::move(served));
    writer.set_record(1).field(0, detail::StreamTable::id_field).set_uint(id);
  }
  static Stream<T> decode(ValueReader reader) {
    return Stream<T>(std::make_shared<detail::RemoteSource<T>>(detail::StreamTable::receive(reader)));
  }
};

}  // namespace weft::rpc

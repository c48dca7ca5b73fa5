// Stream<T>: a sequence of values that arrive one by one, in one program or from one agent to another.
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
// A stream is a result, a parameter, or part of a struct; std::move hands it over, once. Items keep their
// order, and none is repeated or lost, unless the stream ends with an error. A slow reader makes its source
// wait (StreamOptions::window). A reader that closes its stream ends the source. The deadline and
// cancellation of the call that carried a stream do not apply to the stream (docs/streams.md). Thread-safety:
// one thread at a time; writers may be used from any thread.
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

  Stream() = default;  // an empty handle: assign a stream to it
  explicit Stream(std::shared_ptr<detail::StreamSource<T>> source) : source_(std::move(source)) {}
  Stream(Stream&& other) noexcept : source_(std::exchange(other.source_, nullptr)) {}
  Stream& operator=(Stream&& other) noexcept {
    auto source = std::exchange(other.source_, nullptr);
    close();
    source_ = std::move(source);
    return *this;
  }
  ~Stream() { close(); }

  bool valid() const { return source_ != nullptr; }  // false: handed over, closed, or never assigned

  // Returns the next item, or nothing at the end. One call at a time. If the future is dropped, its item is
  // lost. Errors: the source's error, as a RemoteError if the source is another agent; peer_lost or shut_down
  // if that agent ends; failed_precondition if valid() is false.
  Future<std::optional<T>> next() {
    if (source_ != nullptr) return source_->next();
    return detail::failed_stream<std::optional<T>>(
        ErrorKind::failed_precondition, "this Stream is empty: it was sent, closed, or never had a source");
  }
  // Closes the stream: the reader wants no more items. The destructor calls it.
  void close() {
    if (auto source = std::exchange(source_, nullptr)) source->close();
  }

  // Sets the executor of a generator that is read in the program that made it. The generator runs only on
  // this executor, which must outlive the stream. No effect on other streams, or if the generator has an
  // executor. Without on(), a generator that a handler returns runs on the executor of the handler, and a
  // generator that is an argument of a call runs on the handler threads of its agent.
  Stream&& on(Executor& executor) && {
    if (source_ != nullptr) source_->bind({{std::shared_ptr<void>(), &executor}, nullptr, nullptr});
    return std::move(*this);
  }
  // Replaces the agent's default window for a stream from another agent. Call it before the first next(). No
  // effect on other streams.
  Stream&& window(const StreamWindow& window) && {
    if (source_ != nullptr) source_->set_window(window);
    return std::move(*this);
  }

  // For the codec. Handing a stream over empties it, even if it is part of a const value.
  std::shared_ptr<detail::StreamSource<T>> hand_over() const { return std::exchange(source_, nullptr); }

 private:
  mutable std::shared_ptr<detail::StreamSource<T>> source_;
};

namespace detail {
template <class T>
inline constexpr bool runs_on<Stream<T>> = true;
}  // namespace detail

// The writing end of a channel. If it is destroyed before close(), the stream ends with `aborted`, so that
// readers do not consider it complete. Thread-safe.
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

  // Completes when the item has a place in the channel. Errors: cancelled if the reader has closed the
  // stream; resource_exhausted if an earlier write() still waits for room; failed_precondition after the end.
  Future<void> write(T item) {
    if (channel_ != nullptr) return channel_->write(std::move(item));
    return detail::failed_stream<void>(ErrorKind::failed_precondition,
                                       "this StreamWriter is empty: it was moved, or never had a channel");
  }
  void close() { channel_->end(nullptr); }  // the stream ends after the items that were written
  void fail(std::exception_ptr error) { channel_->end(std::move(error)); }
  template <class E>
  void fail(E error) {
    fail(std::make_exception_ptr(std::move(error)));
  }
  bool wanted() const { return channel_->wanted(); }  // false: the reader has closed the stream

 private:
  void drop() {
    if (channel_ != nullptr)
      channel_->end(
          detail::stream_error(ErrorKind::aborted, "the stream's writer was dropped before its end"));
  }
  std::shared_ptr<detail::Channel<T>> channel_;
};

// Makes a channel and returns its two ends. capacity: the maximum number of items in it, at least 1.
template <class T>
std::pair<StreamWriter<T>, Stream<T>> make_channel(std::size_t capacity) {
  auto channel = std::make_shared<detail::Channel<T>>(capacity);
  return {StreamWriter<T>(channel), Stream<T>(channel)};
}

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
      throw Error(ErrorKind::failed_precondition,
                  "this Stream is empty: it was sent, closed, or never had a source");
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

// Reads a stream whose item type is not known at compile time. It is for tools and gateways.
//
//   DynamicStream stream(reply.result());  // reply: returned by call_by_name()
//   while (auto item = stream.next().get()) use(item->value);
//
// Owns the reading end: the destructor closes the stream. Thread-safety: one thread at a time.
class DynamicStream {
 public:
  using Item = detail::StreamReader::Raw;  // the value is valid as long as the item's message

  // Throws type_mismatch if the value is not a stream, failed_precondition if the stream was already taken.
  explicit DynamicStream(ValueReader value) : reader_(detail::StreamTable::receive(value)) {}
  DynamicStream(DynamicStream&&) noexcept = default;
  DynamicStream& operator=(DynamicStream&&) = delete;
  ~DynamicStream() {
    if (reader_ != nullptr) reader_->close();
  }

  Future<std::optional<Item>> next() { return reader_->next(); }  // as Stream<T>::next()

 private:
  std::shared_ptr<detail::StreamReader> reader_;
};

}  // namespace weft::rpc

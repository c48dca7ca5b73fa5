// StreamSource<T>: produces the items of a stream. It is a generator, a channel, or the stream of another
// agent.
//
// Owned by one Stream or, after it was handed over, by the ServedStream. At most one next() is in flight.
// Thread-safety: all members may be called from any thread.
#pragma once

#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/core/future.h>
#include <weft/rpc/endpoint/options.h>

namespace weft::rpc::detail {

// The executor of a generator, and the call whose handler made it. The generator keeps the call.
struct StreamHome {
  std::shared_ptr<Executor> executor;
  std::shared_ptr<IncomingCall> call;
  // Each generator of the call has a copy, so the use count shows whether others exist.
  std::shared_ptr<void> among;
};

template <class T>
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  // Returns the next item, nothing at the end, or the error with which the stream has ended. Later calls
  // return the same end or error.
  virtual Future<std::optional<T>> next() = 0;
  // The reader closes the stream: a next() in flight fails with `cancelled`, and the producer is notified.
  virtual void close() = 0;
  virtual void bind(const StreamHome& home) { (void)home; }    // no effect if the source has a home
  virtual void set_window(const StreamWindow& w) { (void)w; }  // call before the first next()
};

inline std::exception_ptr stream_error(ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(Error(kind, message));
}
inline std::exception_ptr stream_closed() {
  return stream_error(ErrorKind::cancelled, "the stream was closed");
}

// A future that fails with stream_error().
template <class T>
Future<T> failed_stream(ErrorKind kind, const std::string& message) {
  return Future<T>::made(Result<T>(stream_error(kind, message)));
}
// The future of a next() while another one is in flight.
template <class Item>
Future<Item> refused_next() {
  return failed_stream<Item>(ErrorKind::failed_precondition, "a next() is in flight: await it first");
}
// The result of a next() at the end of a stream. error: null if the stream is complete.
template <class Item>
Result<Item> stream_end(const std::exception_ptr& error) {
  return error != nullptr ? Result<Item>(error) : Result<Item>(Item());
}

}  // namespace weft::rpc::detail

// StreamSource<T>: where the items of a stream come from: a generator, a channel, or another agent.
//
// Owned by one Stream or, handed over, by what serves it. One next() is under way at a time. Thread-safety:
// every member may be called from any thread.
#pragma once

#include <weft/rpc/agent/incoming_call.h>
#include <weft/rpc/agent/stream_options.h>
#include <weft/rpc/core/future.h>

namespace weft::rpc::detail {

// Where a generator runs, and the call whose handler made it: that lives as long as the generator does.
struct StreamHome {
  std::shared_ptr<Executor> executor;
  std::shared_ptr<IncomingCall> call;
  std::shared_ptr<void> among;  // one copy for each generator of that call
};

template <class T>
class StreamSource {
 public:
  virtual ~StreamSource() = default;
  // The next item, or nothing at the end, or the error that the stream ends with; again and again.
  virtual Future<std::optional<T>> next() = 0;
  // Nobody reads on: a next() under way fails with `cancelled`, whoever makes the items learns of it.
  virtual void close() = 0;
  virtual void bind(const StreamHome& home) { (void)home; }    // where it has no home yet
  virtual void set_window(const StreamWindow& w) { (void)w; }  // before the first next()
};

inline std::exception_ptr stream_error(ErrorKind kind, const std::string& message) {
  return std::make_exception_ptr(Error(kind, message));
}

}  // namespace weft::rpc::detail

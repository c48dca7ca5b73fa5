// StreamReader: the reading end of a stream from another agent, before its items are decoded.
//
// A pull is a call that requests items (served_stream.h). While less than half of the window is filled with
// items that wait to be read, the reader keeps two pulls in flight, to hide the round-trip time. Owned by the
// Stream. When the Stream is destroyed, replies in flight are dropped. Thread-safety: all members may be
// called from any thread.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/endpoint/peer.h>
#include <weft/rpc/stream/source.h>

#include <deque>

namespace weft::rpc::detail {

class WEFT_EXPORT StreamReader : public std::enable_shared_from_this<StreamReader> {
 public:
  // One encoded item, and the reply that contains it.
  struct Raw {
    std::shared_ptr<IncomingMessage> message;
    ValueReader value;
  };

  // method: the method of the call that carried the stream, for errors.
  StreamReader(Peer source, std::string method, std::uint64_t stream, StreamWindow window)
      : source_(std::move(source)), method_(std::move(method)), stream_(stream), window_(window) {}

  void set_window(const StreamWindow& window);
  Future<std::optional<Raw>> next();
  void close();
  // Call it if the item that next() returned last cannot be decoded. Closes the stream, and throws an error
  // that names the peer and the method.
  [[noreturn]] void refuse_item(const Error& mismatch);

 private:
  using Item = std::optional<Raw>;
  struct Batch {
    std::shared_ptr<IncomingMessage> message;
    ValueReader items;
    std::uint64_t first = 0, count = 0, bytes = 0, held = 0;
    bool last = false;
    std::exception_ptr error;
    std::uint64_t taken = 0;
  };

  void pull();
  void pulled(Result<PendingCall::Reply> reply);
  Batch read(const PendingCall::Reply& reply) const;
  void accept(Batch batch) WEFT_REQUIRES(mutex_);
  std::optional<Result<Item>> take() WEFT_REQUIRES(mutex_);  // the result of next(), if it is available

  const Peer source_;
  const std::string method_;
  const std::uint64_t stream_;
  Mutex mutex_;
  StreamWindow window_ WEFT_GUARDED_BY(mutex_);
  std::optional<Promise<Item>> pending_next_ WEFT_GUARDED_BY(mutex_);
  std::deque<Batch> batches_ WEFT_GUARDED_BY(mutex_);   // those that are not consumed
  std::uint64_t received_ WEFT_GUARDED_BY(mutex_) = 0;  // items so far
  std::uint64_t consumed_ WEFT_GUARDED_BY(mutex_) = 0;
  std::uint64_t consumed_bytes_ WEFT_GUARDED_BY(mutex_) = 0;  // as the source counts them
  std::uint64_t held_bytes_ WEFT_GUARDED_BY(mutex_) = 0;      // memory of batches_ on this agent
  std::uint64_t permitted_ WEFT_GUARDED_BY(mutex_) = 0;       // items that the pulls so far permit
  std::uint64_t next_pull_ WEFT_GUARDED_BY(mutex_) = 0;
  std::size_t pulls_in_flight_ WEFT_GUARDED_BY(mutex_) = 0;
  bool pulling_ WEFT_GUARDED_BY(mutex_) = false;  // only one thread sends pulls at a time
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;    // the end has been received, or a pull has failed
  bool closed_ WEFT_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);  // the error with which the stream ended; null: none
};

template <class T>
class RemoteSource final : public StreamSource<T> {
 public:
  explicit RemoteSource(std::shared_ptr<StreamReader> reader) : reader_(std::move(reader)) {}
  ~RemoteSource() override { reader_->close(); }

  Future<std::optional<T>> next() override {
    return reader_->next().then(
        [reader = reader_](Result<std::optional<StreamReader::Raw>>&& raw) -> Result<std::optional<T>> {
          if (!raw.ok()) return raw.error();
          if (!raw.value()) return std::optional<T>();
          try {
            return std::optional<T>(Codec<T>::decode(raw.value()->value));
          } catch (const Error& mismatch) {
            reader->refuse_item(mismatch);
          } catch (...) {
            reader->close();
            throw;
          }
        });
  }
  void close() override { reader_->close(); }
  void set_window(const StreamWindow& window) override { reader_->set_window(window); }

 private:
  const std::shared_ptr<StreamReader> reader_;
};

}  // namespace weft::rpc::detail

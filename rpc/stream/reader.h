// StreamReader: the reading end of a stream whose source is on another agent, before its items are decoded.
//
// It keeps two pulls under way while there is room for what they may bring, so that the way there and back is
// hidden. Owned by the Stream; what is under way when that ends is dropped. Thread-safety: every member may
// be called from any thread.
#pragma once

#include <weft/rpc/agent/peer.h>
#include <weft/rpc/stream/source.h>

#include <map>

namespace weft::rpc::detail {

class WEFT_EXPORT StreamReader : public std::enable_shared_from_this<StreamReader> {
 public:
  // One item, within the answer that brought it.
  struct Raw {
    std::shared_ptr<IncomingMessage> message;
    ValueReader value;
  };

  // method: of the call that brought the stream, for errors.
  StreamReader(Peer source, std::string method, std::uint64_t stream, StreamWindow window)
      : source_(std::move(source)), method_(std::move(method)), stream_(stream), window_(window) {}

  void set_window(const StreamWindow& window);
  Future<std::optional<Raw>> next();
  void close();
  // The item that next() gave last cannot be decoded: ends the stream, and throws what names peer and method.
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
  void accept(Batch batch);            // mutex_ is held
  std::optional<Result<Item>> take();  // what next() brings now, if anything; mutex_ is held

  const Peer source_;
  const std::string method_;
  const std::uint64_t stream_;
  std::mutex mutex_;  // guards what follows
  StreamWindow window_;
  std::optional<Promise<Item>> asked_;
  std::map<std::uint64_t, Batch> batches_;  // by their first items; those not consumed, and those come early
  std::uint64_t received_ = 0;              // items that have come without a gap
  std::uint64_t consumed_ = 0;
  std::uint64_t consumed_bytes_ = 0;  // as the source counts them
  std::uint64_t held_bytes_ = 0;      // as they take room here
  std::uint64_t permitted_ = 0;       // items, by the last pull
  std::uint64_t next_pull_ = 0;
  std::size_t under_way_ = 0;  // pulls
  bool pulling_ = false;       // one thread at a time sends pulls
  bool ended_ = false;         // the last item has come
  bool closed_ = false;
  bool found_nothing_ = false;  // as failure_ says
  std::exception_ptr error_;    // at the end
  std::exception_ptr failure_;  // of a pull; the end once none is under way
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

// ServedStream: the sending end of a stream that was handed to a peer. It takes as many items from its source
// as the reader permits, and replies to the reader's pulls.
//
// Items are numbered from 0. A pull permits a total number of items and a total of bytes, both counted from
// the beginning of the stream. Pulls and their replies arrive in order. Kept by its agent's StreamTable until
// it has ended. Thread-safety: all members may be called from any thread.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/core/mutex.h>
#include <weft/rpc/stream/source.h>

#include <deque>

namespace weft::rpc::detail {

class StreamTable;

// The error with which a stream ended. It is delivered after the items before it.
struct StreamFailure {
  std::uint16_t kind = 0;
  std::string message, worker, type;
  std::string payload_type, payload;  // the value that accompanies the error; empty: none
};
WEFT_CODEC(StreamFailure, kind, message, worker, type, payload_type, payload)

class WEFT_EXPORT ServedStream : public std::enable_shared_from_this<ServedStream> {
 public:
  explicit ServedStream(StreamWindow limit) : limit_(limit) {}
  virtual ~ServedStream() = default;

  // Call it before other objects refer to this stream.
  void belongs_to(std::weak_ptr<StreamTable> table, std::uint64_t id) {
    table_ = std::move(table);
    id_ = id;
  }
  // number: of the pull, from 0. It permits items below the number `items`, and an item if the items before
  // it have fewer than `bytes` bytes; both count from the beginning of the stream.
  void pull(const std::shared_ptr<IncomingCall>& call, std::uint64_t number, std::uint64_t items,
            std::uint64_t bytes);
  void end(const std::exception_ptr& error);  // ends the stream; waiting and later pulls fail with `error`

 protected:
  void arrived_item();                         // call it after the item is available to encode()
  void arrived_end(std::exception_ptr error);  // null: no more items

  virtual void ask() = 0;                                      // requests one more item
  virtual void encode(std::size_t i, ValueWriter writer) = 0;  // encodes the i-th available item
  virtual void drop(std::size_t count) = 0;                    // drops the first `count` items
  virtual void close_source() = 0;

  mutable Mutex mutex_;

 private:
  using Call = std::shared_ptr<IncomingCall>;
  bool may_ask() const WEFT_REQUIRES(mutex_);
  bool may_answer() const WEFT_REQUIRES(mutex_);
  void pump();
  // What a reply contains.
  struct Written {
    std::uint64_t items = 0;
    bool is_last = false;  // it states the end of the stream
  };
  void answer(const Call& call);
  void write(ValueWriter writer, Written& written);

  const StreamWindow limit_;
  std::weak_ptr<StreamTable> table_;  // constant after belongs_to(), like id_
  std::uint64_t id_ = 0;
  bool pumping_ WEFT_GUARDED_BY(mutex_) = false;
  bool asking_ WEFT_GUARDED_BY(mutex_) = false;
  bool over_ WEFT_GUARDED_BY(mutex_) = false;
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;  // the source has ended
  std::exception_ptr failure_ WEFT_GUARDED_BY(mutex_);
  std::exception_ptr why_over_ WEFT_GUARDED_BY(mutex_);
  std::deque<Call> waiting_ WEFT_GUARDED_BY(mutex_);
  std::uint64_t next_pull_ WEFT_GUARDED_BY(mutex_) = 0;
  std::uint64_t items_ WEFT_GUARDED_BY(mutex_) = 0, bytes_ WEFT_GUARDED_BY(mutex_) = 0;  // permitted
  std::uint64_t taken_ WEFT_GUARDED_BY(mutex_) = 0;  // items received from the source
  std::uint64_t sent_ WEFT_GUARDED_BY(mutex_) = 0, sent_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
  // The average size of the items in the last reply; 0: unknown.
  std::uint64_t item_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
};

template <class T>
class ServedStreamOf final : public ServedStream {
 public:
  ServedStreamOf(std::shared_ptr<StreamSource<T>> source, StreamWindow limit)
      : ServedStream(limit), source_(std::move(source)) {}
  ~ServedStreamOf() override { source_->close(); }

 private:
  void ask() override {
    auto self = std::static_pointer_cast<ServedStreamOf>(shared_from_this());
    source_->next().then([self](Result<std::optional<T>>&& next) {
      if (!next.ok()) return self->arrived_end(next.error());
      if (!next.value()) return self->arrived_end(nullptr);
      {
        MutexLock lock(self->mutex_);
        self->queue_.push_back(std::move(*next.value()));
      }
      self->arrived_item();
    });
  }
  // An element of a deque does not move when others are appended.
  void encode(std::size_t i, ValueWriter writer) override {
    const T* item;
    {
      MutexLock lock(mutex_);
      item = &queue_[i];
    }
    Codec<T>::encode(writer, *item);
  }
  void drop(std::size_t count) override {
    std::deque<T> dropped;  // destroyed after the lock is released
    MutexLock lock(mutex_);
    if (count == queue_.size()) return queue_.swap(dropped);
    for (; count != 0; --count) {
      dropped.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  void close_source() override { source_->close(); }

  const std::shared_ptr<StreamSource<T>> source_;
  std::deque<T> queue_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc::detail

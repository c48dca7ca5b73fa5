// ServedStream: a stream that was handed to a peer: it takes items from its source as far ahead as the reader
// permits, and answers the reader's pulls with what is there.
//
// Items are numbered from 0. A pull permits items up to a number and bytes up to a sum, both counted from the
// stream's beginning, so that nothing depends on which pull is answered first. Kept by its agent's
// StreamTable until it has ended. Thread-safety: every member may be called from any thread.
#pragma once

#include <weft/rpc/codec/struct_codec.h>
#include <weft/rpc/stream/source.h>

#include <deque>

namespace weft::rpc::detail {

class StreamTable;

// What a pull asks for; all counted from the stream's beginning.
struct StreamPull {
  std::uint64_t stream = 0;
  std::uint64_t number = 0;  // of the pull, from 0; each once
  std::uint64_t items = 0;   // items may come up to this number
  std::uint64_t bytes = 0;   // and as long as those before have fewer bytes
};

// The error that a stream ended with, beside the items before it: it has its place among them.
struct StreamFailure {
  std::uint16_t kind = 0;
  std::string message, worker, type;
  std::string payload_type, payload;  // of a value that accompanies the error; empty: no value
};
WEFT_CODEC(StreamFailure, kind, message, worker, type, payload_type, payload)

class WEFT_EXPORT ServedStream : public std::enable_shared_from_this<ServedStream> {
 public:
  explicit ServedStream(StreamWindow most) : most_(most) {}
  virtual ~ServedStream() = default;

  // Before it is known to anybody else.
  void belongs_to(std::weak_ptr<StreamTable> table, std::uint64_t id) {
    table_ = std::move(table);
    id_ = id;
  }
  void pull(const std::shared_ptr<IncomingCall>& call, const StreamPull& pull);
  // Ends it; pulls that wait, and those to come, fail with this. unanswered: takes those that wait instead.
  void end(const std::exception_ptr& error, std::vector<std::shared_ptr<IncomingCall>>* unanswered = nullptr);

 protected:
  void arrived_item();                         // after the item was put where encode() finds it
  void arrived_end(std::exception_ptr error);  // null: there are no more

  virtual void ask() = 0;                                      // for one more item
  virtual void encode(std::size_t i, ValueWriter writer) = 0;  // the i-th of those that are there
  virtual void drop(std::size_t count) = 0;                    // the first so many
  virtual void close_source() = 0;

  mutable std::mutex mutex_;  // guards what follows, and the queue of items

 private:
  using Call = std::shared_ptr<IncomingCall>;
  bool may_ask() const;
  bool may_answer() const;
  void pump();
  void answer(const Call& call);
  void write(ValueWriter writer);

  const StreamWindow most_;
  std::weak_ptr<StreamTable> table_;
  std::uint64_t id_ = 0;
  bool pumping_ = false, again_ = false;  // one thread at a time pumps
  bool asking_ = false;
  bool over_ = false;
  bool ended_ = false;     // by its source
  bool finished_ = false;  // the reader was told so
  std::exception_ptr failure_;
  std::exception_ptr why_over_;
  std::deque<Call> waiting_;
  std::uint64_t next_pull_ = 0;
  std::vector<std::uint64_t> early_pulls_;  // numbers that came before others
  std::uint64_t items_ = 0, bytes_ = 0;     // permitted
  std::uint64_t taken_ = 0;                 // items that the source gave
  std::uint64_t sent_ = 0, sent_bytes_ = 0;
  std::uint64_t item_bytes_ = 0;  // of one item, as the last answer says; 0: not known
};

template <class T>
class ServedStreamOf final : public ServedStream {
 public:
  ServedStreamOf(std::shared_ptr<StreamSource<T>> source, StreamWindow most)
      : ServedStream(most), source_(std::move(source)) {}
  ~ServedStreamOf() override { source_->close(); }

 private:
  void ask() override {
    auto self = std::static_pointer_cast<ServedStreamOf>(shared_from_this());
    source_->next().then([self](Result<std::optional<T>>&& next) {
      if (!next.ok()) return self->arrived_end(next.error());
      if (!next.value()) return self->arrived_end(nullptr);
      {
        std::lock_guard lock(self->mutex_);
        self->queue_.push_back(std::move(*next.value()));
      }
      self->arrived_item();
    });
  }
  // An element of a deque stays where it is while others are put behind it.
  void encode(std::size_t i, ValueWriter writer) override {
    const T* item;
    {
      std::lock_guard lock(mutex_);
      item = &queue_[i];
    }
    Codec<T>::encode(writer, *item);
  }
  void drop(std::size_t count) override {
    std::deque<T> dropped;  // ends after the lock
    std::lock_guard lock(mutex_);
    if (count == queue_.size()) return queue_.swap(dropped);
    for (; count != 0; --count) {
      dropped.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  void close_source() override { source_->close(); }

  const std::shared_ptr<StreamSource<T>> source_;
  std::deque<T> queue_;
};

}  // namespace weft::rpc::detail

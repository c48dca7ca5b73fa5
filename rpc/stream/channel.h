// Channel<T>: a bounded queue between the writer and the reader of a stream in one process.
//
// Both ends own it together. Thread-safe.
#pragma once

#include <weft/rpc/core/mutex.h>
#include <weft/rpc/stream/source.h>

#include <algorithm>
#include <deque>

namespace weft::rpc::detail {

template <class T>
class Channel final : public StreamSource<T> {
 public:
  using Item = std::optional<T>;
  explicit Channel(std::size_t capacity) : capacity_(std::max<std::size_t>(capacity, 1)) {}

  Future<void> write(T item) {
    std::optional<Promise<Item>> reading;
    {
      MutexLock lock(mutex_);
      if (reader_gone_) return failed_stream<void>(ErrorKind::cancelled, "the reader has closed this stream");
      if (ended_)
        return failed_stream<void>(ErrorKind::failed_precondition, "the stream was closed by its writer");
      if (!reading_) {
        if (items_.size() < capacity_) {
          items_.push_back(std::move(item));
          return Future<void>::made(Result<void>{});
        }
        if (writing_)
          return failed_stream<void>(ErrorKind::resource_exhausted,
                                     "the stream is full: wait for the write() before this one");
        items_.push_back(std::move(item));
        writing_.emplace();
        return writing_->future();
      }
      reading.swap(reading_);
    }
    reading->complete(Item(std::move(item)));
    return Future<void>::made(Result<void>{});
  }

  // Closes the writer's end. error: null if the stream is complete.
  void end(std::exception_ptr error) {
    std::optional<Promise<Item>> reading;
    {
      MutexLock lock(mutex_);
      if (ended_ || reader_gone_) return;
      ended_ = true;
      error_ = error;
      if (!reading_) return;
      reading.swap(reading_);
    }
    reading->complete(stream_end<Item>(error));
  }

  bool wanted() const {
    MutexLock lock(mutex_);
    return !reader_gone_;
  }

  Future<Item> next() override {
    Item item;
    std::optional<Promise<void>> written;
    {
      MutexLock lock(mutex_);
      if (reader_gone_) return Future<Item>::made(stream_end<Item>(stream_closed()));
      if (reading_) return refused_next<Item>();
      if (items_.empty()) {
        if (ended_) return Future<Item>::made(stream_end<Item>(error_));
        reading_.emplace();
        return reading_->future();
      }
      item.emplace(std::move(items_.front()));
      items_.pop_front();
      written.swap(writing_);
    }
    if (written) written->complete(Result<void>{});
    return Future<Item>::made(std::move(item));
  }

  void close() override {
    std::deque<T> items;  // destroyed after the lock is released
    std::optional<Promise<Item>> reading;
    std::optional<Promise<void>> writing;
    {
      MutexLock lock(mutex_);
      if (std::exchange(reader_gone_, true)) return;
      items.swap(items_);
      reading.swap(reading_);
      writing.swap(writing_);
    }
    if (writing) writing->fail(Error(ErrorKind::cancelled, "the reader has closed this stream"));
    if (reading) reading->fail(stream_closed());
  }

 private:
  const std::size_t capacity_;
  mutable Mutex mutex_;
  std::deque<T> items_ WEFT_GUARDED_BY(mutex_);  // at most the capacity; one more while a write() waits
  std::optional<Promise<Item>> reading_ WEFT_GUARDED_BY(mutex_);
  std::optional<Promise<void>> writing_ WEFT_GUARDED_BY(mutex_);
  bool ended_ WEFT_GUARDED_BY(mutex_) = false;  // the writer has closed the stream
  bool reader_gone_ WEFT_GUARDED_BY(mutex_) = false;
  std::exception_ptr error_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc::detail

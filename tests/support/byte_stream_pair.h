// ByteStreams for tests: two connected ends in memory, and a loop that the test runs by hand.
//
// The options limit the bytes that an end moves per call, and make an end return spurious would_block errors,
// so that its user sees the bytes split at every position. The two ends may run on two loops of two threads.
#pragma once

#include <weft/rpc/transport/byte_stream.h>

#include <asio/error.hpp>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/hand_loop.h"

namespace weft::test {

// A loop whose thread is that of the test.
struct ManualLoop : HandLoop {
  ManualLoop() : HandLoop(true) {}
};

struct PairOptions {
  std::size_t capacity = 256 << 10;   // of each direction
  std::size_t max_a_call = SIZE_MAX;  // each read and write moves a random number of bytes up to this
  unsigned would_block_one_in = 0;    // one call in this many fails without a cause; 0: none
  std::uint64_t seed = 1;
};

class PairedStream final : public rpc::ByteStream {
 public:
  struct Ends {
    std::unique_ptr<PairedStream> first, second;
  };
  static Ends make(std::shared_ptr<rpc::Loop> first, std::shared_ptr<rpc::Loop> second,
                   PairOptions options = {}) {
    auto there = std::make_shared<Pipe>(options.capacity), back = std::make_shared<Pipe>(options.capacity);
    Ends ends;
    ends.first.reset(new PairedStream(std::move(first), back, there, options, options.seed * 2));
    ends.second.reset(new PairedStream(std::move(second), there, back, options, options.seed * 2 + 1));
    return ends;
  }
  static Ends make(const std::shared_ptr<rpc::Loop>& loop, PairOptions options = {}) {
    return make(loop, loop, options);
  }
  ~PairedStream() override { PairedStream::close(); }

  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override {
    error.clear();
    std::lock_guard lock(in_->mutex);
    if (in_->broken) return failed(error, in_->broken);
    if (hiccup() || (in_->bytes.empty() && !in_->ended)) return failed(error, asio::error::would_block);
    if (in_->bytes.empty()) return failed(error, asio::error::eof);
    std::size_t left = std::min(in_->bytes.size(), some()), moved = 0;
    for (const auto span : into) {
      const std::size_t now = std::min(span.size(), left - moved);
      std::memcpy(span.data(), in_->bytes.data() + moved, now);
      moved += now;
    }
    in_->bytes.erase(0, moved);
    in_->writer.wake();
    return moved;
  }

  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override {
    error.clear();
    std::lock_guard lock(out_->mutex);
    if (out_->broken) return failed(error, out_->broken);
    if (out_->ended || out_->deaf) return failed(error, asio::error::broken_pipe);
    if (hiccup() || out_->bytes.size() >= out_->capacity) return failed(error, asio::error::would_block);
    const std::size_t room = std::min(out_->capacity - out_->bytes.size(), some());
    std::size_t moved = 0;
    for (const auto span : from) {
      const std::size_t now = std::min(span.size(), room - moved);
      out_->bytes.append(reinterpret_cast<const char*>(span.data()), now);
      moved += now;
    }
    out_->reader.wake();
    return moved;
  }

  void when_readable(rpc::Callback job) override {
    std::lock_guard lock(in_->mutex);
    in_->reader = {loop_, alive_, std::move(job)};
    if (!in_->bytes.empty() || in_->ended || in_->broken) in_->reader.wake();
  }
  void when_writable(rpc::Callback job) override {
    std::lock_guard lock(out_->mutex);
    out_->writer = {loop_, alive_, std::move(job)};
    if (out_->bytes.size() < out_->capacity || out_->ended || out_->deaf || out_->broken) out_->writer.wake();
  }

  void shut_down_writing(std::error_code& error) override {
    error.clear();
    end_writing();
  }
  void close() override {
    if (alive_ == nullptr) return;
    alive_.reset();
    end_writing();
    std::lock_guard lock(in_->mutex);
    in_->reader = {};
    in_->deaf = true;
    in_->bytes.clear();
    in_->writer.wake();
  }
  // From now on, both directions fail on both sides.
  void break_down(std::error_code error) {
    for (const auto& pipe : {in_, out_}) {
      std::lock_guard lock(pipe->mutex);
      pipe->broken = error;
      pipe->reader.wake();
      pipe->writer.wake();
    }
  }
  std::string describe() const override { return "memory"; }

 private:
  struct Waiter {
    std::shared_ptr<rpc::Loop> loop;
    std::weak_ptr<void> alive;
    rpc::Callback job;
    void wake() {
      if (!job) return;
      loop->post([alive = std::move(alive), job = std::exchange(job, {})]() mutable {
        if (!alive.expired()) job();
      });
    }
  };
  struct Pipe {  // one direction
    explicit Pipe(std::size_t room) : capacity(room) {}
    const std::size_t capacity;
    std::mutex mutex;  // guards the members below
    std::string bytes;
    bool ended = false;  // by its writer
    bool deaf = false;   // its reader was destroyed
    std::error_code broken;
    Waiter reader, writer;
  };

  PairedStream(std::shared_ptr<rpc::Loop> loop, std::shared_ptr<Pipe> in, std::shared_ptr<Pipe> out,
               const PairOptions& options, std::uint64_t seed)
      : loop_(std::move(loop)), in_(std::move(in)), out_(std::move(out)), options_(options), random_(seed) {}

  static std::size_t failed(std::error_code& error, std::error_code why) {
    error = why;
    return 0;
  }
  bool hiccup() { return options_.would_block_one_in != 0 && random_() % options_.would_block_one_in == 0; }
  std::size_t some() {
    return options_.max_a_call == SIZE_MAX ? SIZE_MAX : 1 + random_() % options_.max_a_call;
  }
  void end_writing() {
    std::lock_guard lock(out_->mutex);
    out_->ended = true;
    out_->writer = {};
    out_->reader.wake();
  }

  const std::shared_ptr<rpc::Loop> loop_;
  const std::shared_ptr<Pipe> in_, out_;
  const PairOptions options_;
  std::mt19937_64 random_;
  std::shared_ptr<void> alive_ = std::make_shared<char>();
};

// A user of a stream: sends the given bytes, receives in spans of random sizes, and ends its direction on
// request. All members run on the stream's loop.
class Talker {
 public:
  Talker(std::unique_ptr<rpc::ByteStream> stream, std::string to_send, bool end_after = false,
         std::uint64_t seed = 1)
      : stream_(std::move(stream)), to_send_(std::move(to_send)), end_after_(end_after), random_(seed) {}

  void start() {
    read();
    write();
  }
  void send(const std::string& more) {
    to_send_ += more;
    if (stream_ != nullptr && !waits_to_write_) write();
  }
  void drop() { stream_.reset(); }

  rpc::ByteStream& stream() { return *stream_; }
  const std::string& received() const { return received_; }
  std::size_t sent() const { return sent_; }
  bool ended() const { return read_error_ == asio::error::eof; }
  const std::error_code& read_error() const { return read_error_; }
  const std::error_code& write_error() const { return write_error_; }
  const std::string& explained() const { return explained_; }  // the first error that is not eof
  std::size_t wake_ups() const { return wake_ups_; }
  rpc::UniqueFunction<void()> when_done;  // called when reading has ended, for whatever reason

 private:
  void read() {
    std::byte buffer[5000];
    for (;;) {
      std::span<std::byte> rest(buffer);
      std::vector<std::span<std::byte>> into;
      while (!rest.empty() && into.size() < 8) {
        const std::size_t size = std::min<std::size_t>(1 + random_() % 1500, rest.size());
        into.push_back(rest.first(size));
        rest = rest.subspan(size);
      }
      std::error_code error;
      std::size_t moved = stream_->read(into, error);
      if ((moved == 0) != static_cast<bool>(error))
        throw std::logic_error("bytes, or an error that says why not");
      for (const auto span : into) {
        const std::size_t now = std::min(span.size(), moved);
        received_.append(reinterpret_cast<const char*>(span.data()), now);
        moved -= now;
      }
      if (error == asio::error::would_block) {
        return stream_->when_readable([this] {
          ++wake_ups_;
          read();
        });
      }
      if (error) {
        read_error_ = error;
        if (error != asio::error::eof && explained_.empty()) explained_ = stream_->explain(error);
        if (when_done) when_done();
        return;
      }
    }
  }

  void write() {
    waits_to_write_ = false;
    while (sent_ < to_send_.size()) {
      std::span<const std::byte> rest = std::as_bytes(std::span(to_send_)).subspan(sent_);
      std::vector<std::span<const std::byte>> from;
      while (!rest.empty() && from.size() < 8) {
        const std::size_t most = random_() % 4 == 0 ? 60'000 : 300;
        const std::size_t size = std::min<std::size_t>(1 + random_() % most, rest.size());
        from.push_back(rest.first(size));
        rest = rest.subspan(size);
      }
      std::error_code error;
      const std::size_t moved = stream_->write(from, error);
      if ((moved == 0) != static_cast<bool>(error))
        throw std::logic_error("bytes, or an error that says why not");
      sent_ += moved;
      if (error == asio::error::would_block) {
        waits_to_write_ = true;
        return stream_->when_writable([this] {
          ++wake_ups_;
          write();
        });
      }
      if (error) {
        write_error_ = error;
        if (explained_.empty()) explained_ = stream_->explain(error);
        return;
      }
    }
    if (!end_after_) return;
    end_after_ = false;
    std::error_code error;
    stream_->shut_down_writing(error);
  }

  std::unique_ptr<rpc::ByteStream> stream_;
  std::string to_send_, received_, explained_;
  std::size_t sent_ = 0, wake_ups_ = 0;
  bool end_after_, waits_to_write_ = false;
  std::error_code read_error_, write_error_;
  std::mt19937_64 random_;
};

}  // namespace weft::test

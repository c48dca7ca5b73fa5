// Lanes: streams of bytes beside a connection that carry its large attachments, each in as many slices.
//
// One TCP connection is one flow of the network and the work of one core; lanes are several of both, since
// each lives on its own loop. What is written here is read on the other side in the same order and the same
// sizes, which the frames on the connection itself tell: lanes have no framing of their own. Members are
// called on the loop of the connection (`home`).
#pragma once

#include <weft/rpc/core/buffer.h>
#include <weft/rpc/transport/byte_stream.h>

#include <atomic>
#include <vector>

namespace weft::rpc {

class WEFT_EXPORT Lanes final {
 public:
  // Attachments of so many bytes and more go this way. Both sides must agree on it: it is part of the wire.
  static constexpr std::size_t least_bytes = std::size_t{1} << 20;

  // A stream and its loop, on which it is let go of too.
  class Stream {
   public:
    Stream() = default;
    Stream(std::unique_ptr<ByteStream> stream, std::shared_ptr<Loop> loop)
        : stream_(std::move(stream)), loop_(std::move(loop)) {}
    Stream(Stream&&) noexcept = default;
    Stream& operator=(Stream&& other) noexcept {
      let_go();
      stream_ = std::move(other.stream_);
      loop_ = std::move(other.loop_);
      return *this;
    }
    ~Stream() { let_go(); }
    explicit operator bool() const { return stream_ != nullptr; }
    ByteStream* operator->() const { return stream_.get(); }
    const std::shared_ptr<Loop>& loop() const { return loop_; }
    void let_go();  // closes it

   private:
    std::unique_ptr<ByteStream> stream_;
    std::shared_ptr<Loop> loop_;
  };
  using Lost = UniqueFunction<void(const std::string& why, bool idle)>;

  // streams: in the order that both sides know.
  Lanes(std::shared_ptr<Loop> home, std::vector<Stream> streams);
  ~Lanes();  // closes; any thread
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  // Once, before the first write() or read(). `lost` runs on `home` for each lane that is, never after
  // close(). idle: it had nothing to write or to read any more, so that what the others do may still succeed.
  void start(Lost lost);

  // The buffers are shared until they have left, or the lanes have been closed and each has noticed. `done`
  // runs on `home`; never after close().
  void write(std::vector<Buffer> buffers, Callback done);
  void read(std::vector<Buffer> buffers, Callback done);
  void drop_reads();  // what has come and will come is thrown away, so that the other side can go on writing
  void close();       // idempotent

  std::uint64_t received_bytes() const;  // so far; any thread
  std::uint64_t written_bytes() const;

 private:
  class Lane;
  struct Shared;
  void transfer(std::vector<Buffer> buffers, Callback done, bool reading);

  const std::shared_ptr<Shared> shared_;
  std::vector<std::shared_ptr<Lane>> lanes_;
};

}  // namespace weft::rpc

// Each attachment on the lanes is cut into as many slices as there are lanes (slice()); lane i carries slice
// i. The frame on the connection announces the sizes of its attachments, in order. So each side knows which
// bytes come next on each lane, and the lanes need no framing of their own.
//
// Both directions of a lane are queues of pieces. A piece is the slice of one attachment. The transfer of a
// frame's attachments counts the remaining pieces on all lanes. The lane that completes the last piece posts
// `done` to the loop of the connection.
#include <weft/rpc/transport/lanes.h>

#include <weft/rpc/core/fifo.h>
#include <weft/rpc/wire/frame.h>

#include <asio/error.hpp>

#include <algorithm>
#include <optional>

namespace weft::rpc {
namespace {

constexpr std::size_t max_pieces = 64;  // of one system call
constexpr int max_moves_a_turn = 16;    // then other work on the loop runs
constexpr std::size_t dropped_at_a_time = 64 << 10;

// The part of `bytes` that lane i of n carries. Both sides must compute the same part.
std::span<std::byte> slice(std::span<std::byte> bytes, std::size_t i, std::size_t n) {
  const std::size_t each = padded((bytes.size() + n - 1) / n);
  const std::size_t begin = std::min(i * each, bytes.size());
  return bytes.subspan(begin, std::min(each, bytes.size() - begin));
}

}  // namespace

struct Lanes::Shared {
  explicit Shared(std::shared_ptr<Loop> loop) : home(std::move(loop)) {}

  const std::shared_ptr<Loop> home;
  Lost lost;                                           // on `home`
  std::atomic<bool> closed{false};                     // set on `home`, and by the destructor on any thread
  std::atomic<std::uint64_t> received{0}, written{0};  // bytes
};

// Used on its own loop, except start(), post(), drop_reads() and close(), which post to it. The lane always
// waits for bytes, because only reading detects its end. If no piece is expected, it reads at most one byte
// ahead: that byte may arrive before the frame that it belongs to.
class Lanes::Lane final : public std::enable_shared_from_this<Lane> {
 public:
  // The pieces of one read() or write() on all lanes. The lane that completes the last one runs `done`.
  struct Transfer {
    explicit Transfer(Callback job) : done(std::move(job)) {}
    std::atomic<std::size_t> left{0};
    Callback done;
  };
  struct Piece {
    Buffer buffer;  // the owner of `bytes`
    std::span<std::byte> bytes;
    std::shared_ptr<Transfer> transfer;
  };

  Lane(std::shared_ptr<Shared> shared, Stream stream)
      : shared_(std::move(shared)), loop_(stream.get_deleter().loop), stream_(std::move(stream)) {}

  void start() {
    loop_->post([self = shared_from_this()] { self->move(true); });
  }
  void post(std::vector<Piece> pieces, bool reading) {
    loop_->post([self = shared_from_this(), pieces = std::move(pieces), reading]() mutable {
      if (self->closed_ || (reading && self->dropping_)) return;
      Way& way = reading ? self->in_ : self->out_;
      for (Piece& piece : pieces) way.pieces.push(std::move(piece));
      if (reading) self->use_ahead();
      if (!way.waiting) self->move(reading);
    });
  }
  void drop_reads() {
    loop_->post([self = shared_from_this()] {
      if (self->closed_ || std::exchange(self->dropping_, true)) return;
      const auto dropped = std::exchange(self->in_.pieces, {});
      self->ahead_.reset();
      self->scratch_.resize(dropped_at_a_time);
      if (!self->in_.waiting) self->move(true);
    });
  }

  void close() {
    loop_->post([self = shared_from_this()] { self->end(); });
  }

 private:
  struct Way {
    Fifo<Piece> pieces;
    bool waiting = false;  // for the stream
  };

  void move(bool reading) {
    Way& way = reading ? in_ : out_;
    for (int i = 0; i < max_moves_a_turn; ++i) {
      if (closed_ || (reading ? ahead_.has_value() : way.pieces.empty())) return;
      std::error_code error;
      const std::size_t bytes = reading ? read(error) : write(error);
      if (bytes == 0 && error != asio::error::would_block) return fail(error);
      if (bytes == 0) return wait(reading);
    }
    way.waiting = true;
    loop_->post([self = shared_from_this(), reading] { self->again(reading); });
  }

  std::size_t read(std::error_code& error) {
    std::byte ahead;
    into_.clear();
    if (dropping_) {
      into_.emplace_back(scratch_);
    } else if (in_.pieces.empty()) {
      into_.emplace_back(&ahead, 1);
    } else {
      for (std::size_t i = 0; i < std::min(in_.pieces.size(), max_pieces); ++i)
        into_.push_back(in_.pieces[i].bytes);
    }
    const std::size_t bytes = stream_->read(into_, error);
    shared_->received.fetch_add(bytes, std::memory_order_relaxed);
    if (!in_.pieces.empty())
      moved(in_, bytes);
    else if (!dropping_ && bytes != 0)
      ahead_ = ahead;
    return bytes;
  }
  void use_ahead() {
    if (!ahead_ || in_.pieces.empty()) return;
    in_.pieces.front().bytes.front() = *ahead_;
    ahead_.reset();
    moved(in_, 1);
  }
  std::size_t write(std::error_code& error) {
    from_.clear();
    for (std::size_t i = 0; i < std::min(out_.pieces.size(), max_pieces); ++i)
      from_.push_back(out_.pieces[i].bytes);
    const std::size_t bytes = stream_->write(from_, error);
    shared_->written.fetch_add(bytes, std::memory_order_relaxed);
    moved(out_, bytes);
    return bytes;
  }

  void moved(Way& way, std::size_t bytes) {
    while (bytes != 0) {
      Piece& piece = way.pieces.front();
      const std::size_t n = std::min(bytes, piece.bytes.size());
      piece.bytes = piece.bytes.subspan(n);
      bytes -= n;
      if (!piece.bytes.empty()) return;
      const auto transfer = std::move(piece.transfer);
      way.pieces.drop();
      if (transfer->left.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
      shared_->home->post([shared = shared_, done = std::move(transfer->done)]() mutable {
        if (!shared->closed) done();
      });
    }
  }

  void wait(bool reading) {
    (reading ? in_ : out_).waiting = true;
    Callback job = [self = shared_from_this(), reading] { self->again(reading); };
    reading ? stream_->when_readable(std::move(job)) : stream_->when_writable(std::move(job));
  }
  void again(bool reading) {
    (reading ? in_ : out_).waiting = false;
    move(reading);
  }

  void fail(const std::error_code& error) {
    const std::string why =
        stream_->describe() + ": " +
        (error == asio::error::eof ? "the other side closed it" : stream_->explain(error));
    const bool idle = in_.pieces.empty() && out_.pieces.empty();
    end();
    shared_->home->post([shared = shared_, why, idle] {
      if (!shared->closed) shared->lost(why, idle);
    });
  }
  void end() {
    if (std::exchange(closed_, true)) return;
    stream_.reset();
    const Way in = std::exchange(in_, {}), out = std::exchange(out_, {});
  }

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Loop> loop_;
  Stream stream_;
  bool closed_ = false;
  Way in_, out_;
  std::optional<std::byte> ahead_;  // read before its piece was posted
  bool dropping_ = false;
  std::vector<std::byte> scratch_;
  std::vector<std::span<std::byte>> into_;
  std::vector<std::span<const std::byte>> from_;
};

void Lanes::CloseOnLoop::operator()(ByteStream* stream) const {
  // Posted, because this may run within a call from the stream.
  loop->post([stream = std::shared_ptr<ByteStream>(stream)] { stream->close(); });
}

Lanes::Lanes(std::shared_ptr<Loop> home, std::vector<Stream> streams)
    : shared_(std::make_shared<Shared>(std::move(home))) {
  for (Stream& stream : streams) lanes_.push_back(std::make_shared<Lane>(shared_, std::move(stream)));
}

Lanes::~Lanes() { close(); }

void Lanes::start(Lost lost) {
  shared_->lost = std::move(lost);
  for (const auto& lane : lanes_) lane->start();
}

void Lanes::write(std::vector<Buffer> buffers, Callback done) {
  transfer(std::move(buffers), std::move(done), false);
}
void Lanes::read(std::vector<Buffer> buffers, Callback done) {
  transfer(std::move(buffers), std::move(done), true);
}

void Lanes::transfer(std::vector<Buffer> buffers, Callback done, bool reading) {
  if (shared_->closed) return;
  auto whole = std::make_shared<Lane::Transfer>(std::move(done));
  std::vector<std::vector<Lane::Piece>> pieces(lanes_.size());
  for (const Buffer& buffer : buffers) {
    for (std::size_t i = 0; i < lanes_.size(); ++i) {
      const auto bytes = slice(buffer.bytes(), i, lanes_.size());
      if (bytes.empty()) continue;
      ++whole->left;
      pieces[i].push_back({buffer, bytes, whole});
    }
  }
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    if (!pieces[i].empty()) lanes_[i]->post(std::move(pieces[i]), reading);
}

void Lanes::drop_reads() {
  for (const auto& lane : lanes_) lane->drop_reads();
}

void Lanes::close() {
  if (shared_->closed.exchange(true)) return;
  for (const auto& lane : lanes_) lane->close();
}

std::uint64_t Lanes::received_bytes() const { return shared_->received.load(std::memory_order_relaxed); }
std::uint64_t Lanes::written_bytes() const { return shared_->written.load(std::memory_order_relaxed); }

}  // namespace weft::rpc

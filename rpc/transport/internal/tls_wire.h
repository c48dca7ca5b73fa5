// TlsWire: a BIO over a ByteStream, which OpenSSL reads and writes, with a buffer for each direction.
//
// A read takes all bytes that the lower stream has, so that several records cost one call of the lower
// stream. Writes are collected, and flush() passes them on. So OpenSSL never waits for the lower stream to
// accept bytes, and no write has to be repeated with the same bytes. Owned by a TlsStream, whose SSL is
// destroyed first.
#pragma once

#include <weft/rpc/security/internal/openssl.h>
#include <weft/rpc/transport/byte_stream.h>

#include <asio/error.hpp>

#include <algorithm>
#include <array>
#include <cstring>

namespace weft::rpc {

class TlsWire {
 public:
  explicit TlsWire(std::unique_ptr<ByteStream> lower)
      : lower_(std::move(lower)), method_(BIO_meth_new(BIO_TYPE_SOURCE_SINK, "weft")) {
    if (method_ == nullptr) throw std::bad_alloc();
    BIO_meth_set_write_ex(method_.get(), bio_write);
    BIO_meth_set_read_ex(method_.get(), bio_read);
    BIO_meth_set_ctrl(method_.get(), bio_control);
  }

  ByteStream& lower() const { return *lower_; }
  // Call it once; the BIO must be destroyed before this object.
  openssl::Bio make_bio() {
    openssl::Bio bio(BIO_new(method_.get()));
    if (bio == nullptr) throw std::bad_alloc();
    BIO_set_data(bio.get(), this);
    BIO_set_init(bio.get(), 1);
    return bio;
  }

  // Whether nothing is buffered and the last read of the lower stream returned less than was requested. Then
  // another read would most probably block.
  bool exhausted() const { return in_begin_ == in_end_ && dry_; }
  const std::error_code& read_error() const { return read_error_; }
  // The first bytes that were received, up to four.
  std::string_view first_bytes() const { return {first_, first_size_}; }

  // Appends to the pending bytes.
  void append(std::span<const std::byte> bytes) {
    if (write_error_) return;  // these bytes can no longer be sent
    if (out_size_ - out_end_ < bytes.size()) {
      const std::size_t wanted = pending() + bytes.size();
      if (wanted > out_size_) {
        const std::size_t size = std::max({least_buffer, out_size_ * 2, wanted});
        auto fresh = std::make_unique_for_overwrite<std::byte[]>(size);
        if (pending() > 0) std::memcpy(fresh.get(), out_.get() + out_begin_, pending());
        out_ = std::move(fresh);
        out_size_ = size;
      } else {
        std::memmove(out_.get(), out_.get() + out_begin_, pending());
      }
      out_end_ = pending();
      out_begin_ = 0;
    }
    std::memcpy(out_.get() + out_end_, bytes.data(), bytes.size());
    out_end_ += bytes.size();
  }
  std::size_t pending() const { return out_end_ - out_begin_; }
  // Writes as much as the lower stream accepts.
  void flush() {
    while (pending() > 0) {
      std::error_code error;
      const std::array<std::span<const std::byte>, 1> from{{{out_.get() + out_begin_, pending()}}};
      const std::size_t moved = lower_->write(from, error);
      out_begin_ += moved;
      if (moved > 0) continue;
      if (error != asio::error::would_block) {
        write_error_ = error;
        out_begin_ = out_end_;
      }
      break;
    }
    if (pending() == 0) out_begin_ = out_end_ = 0;
  }
  const std::error_code& write_error() const { return write_error_; }  // if set, nothing is pending

  // Discards received bytes that were not read, up to a limit. Closing a socket with unread bytes resets the
  // connection, and the peer would not receive the last bytes that were sent.
  void discard() {
    in_begin_ = in_end_ = 0;
    if (in_ == nullptr) return;
    const std::array<std::span<std::byte>, 1> into{{{in_.get(), in_size_}}};
    for (std::size_t left = 1 << 20, moved = 0; left > 0; left -= std::min(left, moved))
      if (ended_ || read_error_ || !read_below(into, moved)) return;
  }

 private:
  // A connection with small messages keeps the minimum; a read that fills the buffer lets it grow.
  static constexpr std::size_t least_buffer = 4 << 10, max_input = 128 << 10;

  static int bio_write(BIO* bio, const char* data, std::size_t size, std::size_t* written) {
    auto* self = static_cast<TlsWire*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    try {
      self->append(std::as_bytes(std::span(data, size)));
    } catch (const std::bad_alloc&) {
      return 0;
    }
    *written = size;
    return 1;
  }
  static int bio_read(BIO* bio, char* data, std::size_t size, std::size_t* read) {
    auto* self = static_cast<TlsWire*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    *read = 0;
    const auto into = std::as_writable_bytes(std::span(data, size));
    if (self->in_begin_ != self->in_end_) {
      *read = std::min(size, self->in_end_ - self->in_begin_);
      std::memcpy(data, self->in_.get() + self->in_begin_, *read);
      self->in_begin_ += *read;
      return 1;
    }
    if (self->ended_ || self->read_error_) return 0;
    if (self->in_ == nullptr || self->in_end_ == self->in_size_) {
      const std::size_t wanted = std::clamp(self->in_size_ * 4, least_buffer, max_input);
      if (wanted != self->in_size_) {
        auto* fresh = new (std::nothrow) std::byte[wanted];
        if (fresh != nullptr) self->in_.reset(fresh), self->in_size_ = wanted;
      }
      if (self->in_ == nullptr) return 0;
    }
    self->in_begin_ = self->in_end_ = 0;
    // The bytes that OpenSSL asks for are read into its buffer, the rest into ours.
    std::size_t moved = 0;
    const std::array<std::span<std::byte>, 2> targets{into, {self->in_.get(), self->in_size_}};
    if (!self->read_below(targets, moved)) {
      if (!self->ended_ && !self->read_error_) BIO_set_retry_read(bio);
      return 0;
    }
    self->dry_ = moved < size + self->in_size_;
    *read = std::min(moved, size);
    self->in_end_ = moved - *read;
    const std::size_t seen = std::min(sizeof self->first_ - self->first_size_, *read);
    std::memcpy(self->first_ + self->first_size_, data, seen);
    self->first_size_ += seen;
    return 1;
  }
  static long bio_control(BIO* bio, int command, long, void*) {
    const auto* self = static_cast<const TlsWire*>(BIO_get_data(bio));
    switch (command) {
      case BIO_CTRL_FLUSH:
        return 1;  // the TlsStream calls flush() when OpenSSL has finished
      case BIO_CTRL_EOF:
        return self->ended_ && self->in_begin_ == self->in_end_ ? 1 : 0;
      default:
        return 0;
    }
  }
  bool read_below(std::span<const std::span<std::byte>> into, std::size_t& moved) {
    std::error_code error;
    moved = lower_->read(into, error);
    if (moved > 0) return true;
    dry_ = true;
    if (error == asio::error::eof)
      ended_ = true;
    else if (error != asio::error::would_block)
      read_error_ = error;
    return false;
  }

  std::unique_ptr<ByteStream> lower_;
  openssl::BioMethod method_;

  std::unique_ptr<std::byte[]> in_;
  std::size_t in_size_ = 0, in_begin_ = 0, in_end_ = 0;
  bool dry_ = false, ended_ = false;
  std::error_code read_error_;
  char first_[4];
  std::size_t first_size_ = 0;

  std::unique_ptr<std::byte[]> out_;
  std::size_t out_size_ = 0, out_begin_ = 0, out_end_ = 0;
  std::error_code write_error_;
};

}  // namespace weft::rpc

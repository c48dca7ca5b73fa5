// TlsWire: a BIO over a ByteStream, which OpenSSL reads and writes, with a buffer for each direction.
//
// A read takes all bytes that the lower stream has, so that several records cost one call of the lower
// stream. Writes are collected, and flush() passes them on. So OpenSSL never waits for the lower stream to
// accept bytes, and no write has to be repeated with the same bytes. Owned by a TlsStream, whose SSL is
// destroyed first.
#pragma once

#include <weft/rpc/security/internal/openssl.h>
#include <weft/rpc/transport/byte_stream.h>

namespace weft::rpc {

class TlsWire {
 public:
  explicit TlsWire(std::unique_ptr<ByteStream> lower);

  ByteStream& lower() { return *lower_; }
  openssl::Bio make_bio();  // call once; the BIO must be destroyed before this object

  // Whether nothing is buffered and the last read of the lower stream returned less than was requested. Then
  // another read would most probably block.
  bool exhausted() const { return in_begin_ == in_end_ && dry_; }
  const std::error_code& read_error() const { return read_error_; }
  // The first bytes that were received, up to four.
  std::string_view first_bytes() const { return {first_, first_size_}; }

  void append(std::span<const std::byte> bytes);  // appends to the pending bytes
  std::size_t pending() const { return out_end_ - out_begin_; }
  // Writes as much as the lower stream accepts.
  void flush();
  const std::error_code& write_error() const { return write_error_; }  // if set, nothing is pending

  // Discards received bytes that were not read, up to a limit. Closing a socket with unread bytes resets the
  // connection, and the peer would not receive the last bytes that were sent.
  void discard();

 private:
  static int bio_write(BIO* bio, const char* data, std::size_t size, std::size_t* written);
  static int bio_read(BIO* bio, char* data, std::size_t size, std::size_t* read);
  static long bio_control(BIO* bio, int command, long number, void* pointer);

  bool read_below(std::span<const std::span<std::byte>> into, std::size_t& moved);

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

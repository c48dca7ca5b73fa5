// TlsWire: what OpenSSL reads from and writes to: a BIO over a ByteStream, with a buffer for each direction.
//
// What comes is read as far as the lower stream has it, so that several records cost one call below; what
// goes is gathered, and flush() hands it on. So OpenSSL never waits for the lower stream to take something,
// and no write has to be tried again with the same bytes. Owner: a TlsStream, whose SSL ends before it does.
#pragma once

#include <weft/rpc/security/internal/openssl.h>
#include <weft/rpc/transport/byte_stream.h>

namespace weft::rpc {

class TlsWire {
 public:
  explicit TlsWire(std::unique_ptr<ByteStream> lower);
  ~TlsWire();
  TlsWire(const TlsWire&) = delete;
  TlsWire& operator=(const TlsWire&) = delete;

  ByteStream& lower() { return *lower_; }
  openssl::Bio make_bio();  // one, which ends before this does

  // Whether there may be more to read without waiting: not after the lower stream had less than was asked
  // for.
  bool exhausted() const { return in_begin_ == in_end_ && dry_; }
  const std::error_code& read_error() const { return read_error_; }
  std::string_view first_bytes() const { return {first_, first_size_}; }  // that ever came, up to four

  void append(std::span<const std::byte> bytes);  // to what is pending
  std::size_t pending() const { return out_end_ - out_begin_; }
  void flush();                                                        // as much as the lower stream takes
  const std::error_code& write_error() const { return write_error_; }  // then nothing is pending any more

  // Throws away what came and was not read, up to a limit: a socket that is closed over unread bytes resets
  // the connection, and the peer would not see what was sent last.
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

// A TLS peer whose frames a test writes, by OpenSSL over a socket.
#pragma once

#include "tests/support/raw_peer.h"
#include "tests/support/raw_tls.h"

namespace weft::test {

class TlsSocket {
 public:
  // Completes the handshake, but keeps its last flight, which is sent with the first send().
  TlsSocket(const std::string& address, const TestAuthority::Issued& who)
      : socket_(rpc::probe::Socket::connected(address)), context_(SSL_CTX_new(TLS_client_method())) {
    use_certificate(context_.get(), who.certificate, who.key);
    ssl_.reset(SSL_new(context_.get()));
    static constexpr unsigned char protocols[] = "\4weft";
    SSL_set_alpn_protos(ssl_.get(), protocols, sizeof protocols - 1);
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    SSL_set_bio(ssl_.get(), in_, out_);
    while (SSL_connect(ssl_.get()) != 1) {
      flush();
      if (!receive()) throw std::runtime_error("no TLS with the other side");
    }
  }

  void send(std::span<const std::byte> bytes) {
    SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size()));
    flush();
  }
  // The next frame; none once the other side has closed.
  std::optional<rpc::InboundFrame> next() {
    for (;;) {
      if (auto frame = reader_.next()) return frame;
      const auto into = reader_.targets().front();
      const int n = SSL_read(ssl_.get(), into.data(), static_cast<int>(into.size()));
      if (n > 0)
        reader_.advance(static_cast<std::size_t>(n));
      else if (SSL_get_error(ssl_.get(), n) != SSL_ERROR_WANT_READ || !receive())
        return std::nullopt;
    }
  }

 private:
  void flush() {
    char* data = nullptr;
    const long size = BIO_get_mem_data(out_, &data);
    if (size > 0) socket_.send(std::as_bytes(std::span(data, static_cast<std::size_t>(size))));
    BIO_reset(out_);
  }
  bool receive() {
    std::byte bytes[4096];
    const std::size_t n = socket_.receive(bytes);
    if (n != 0) BIO_write(in_, bytes, static_cast<int>(n));
    return n != 0;
  }

  rpc::probe::Socket socket_;
  TlsContext context_;
  TlsSession ssl_;
  BIO *in_ = nullptr, *out_ = nullptr;  // owned by the SSL
  rpc::FrameReader reader_{rpc::Limits{}};
};

}  // namespace weft::test

// RawTls: a TLS peer that is not weft, made with OpenSSL alone. Its options choose an old version, no
// certificate, a wrong certificate or another application. It sends a message when its side of the handshake
// is done.
#pragma once

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>

#include "tests/support/tls.h"

namespace weft::test {

struct RawOptions {
  bool server = false;
  int highest = 0;                   // version; 0: the highest supported one
  std::string application = "weft";  // "": without ALPN
  std::string certificate, key;      // PEM; empty: none
};

template <auto function>
struct FreeBy {
  template <class T>
  void operator()(T* object) const {
    function(object);
  }
};
using TlsContext = std::unique_ptr<SSL_CTX, FreeBy<SSL_CTX_free>>;
using TlsSession = std::unique_ptr<SSL, FreeBy<SSL_free>>;

inline void use_certificate(SSL_CTX* context, const std::string& certificate_pem,
                            const std::string& key_pem) {
  BIO* pem = BIO_new_mem_buf(certificate_pem.data(), -1);
  X509* certificate = PEM_read_bio_X509(pem, nullptr, nullptr, nullptr);
  SSL_CTX_use_certificate(context, certificate);
  X509_free(certificate);
  BIO_free(pem);
  pem = BIO_new_mem_buf(key_pem.data(), -1);
  EVP_PKEY* key = PEM_read_bio_PrivateKey(pem, nullptr, nullptr, nullptr);
  SSL_CTX_use_PrivateKey(context, key);
  EVP_PKEY_free(key);
  BIO_free(pem);
}

class RawTls {
 public:
  static constexpr const char* message = "from something else";

  RawTls(std::unique_ptr<rpc::ByteStream> stream, RawOptions options)
      : options_(std::move(options)), stream_(std::move(stream)), context_(SSL_CTX_new(TLS_method())) {
    SSL_CTX_set_security_level(context_.get(), 0);
    SSL_CTX_set_max_proto_version(context_.get(), options_.highest);
    if (!options_.certificate.empty()) use_certificate(context_.get(), options_.certificate, options_.key);
    ssl_.reset(SSL_new(context_.get()));
    if (options_.server) SSL_set_verify(ssl_.get(), SSL_VERIFY_PEER, [](int, X509_STORE_CTX*) { return 1; });
    const std::string protocols = static_cast<char>(options_.application.size()) + options_.application;
    if (!options_.application.empty() && !options_.server)
      SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>(protocols.data()),
                          static_cast<unsigned>(protocols.size()));
    if (!options_.application.empty() && options_.server)
      SSL_CTX_set_alpn_select_cb(context_.get(), choose, this);
    SSL_set_msg_callback(
        ssl_.get(), [](int sent, int, int kind, const void* bytes, std::size_t size, SSL*, void* self) {
          const bool update = kind == SSL3_RT_HANDSHAKE && size > 0 &&
                              *static_cast<const unsigned char*>(bytes) == SSL3_MT_KEY_UPDATE;
          if (sent == 0 && update) ++static_cast<RawTls*>(self)->key_updates_;
        });
    SSL_set_msg_callback_arg(ssl_.get(), this);
    in_ = BIO_new(BIO_s_mem());
    out_ = BIO_new(BIO_s_mem());
    BIO_set_mem_eof_return(in_, -1);
    SSL_set_bio(ssl_.get(), in_, out_);
    if (options_.server)
      SSL_set_accept_state(ssl_.get());
    else
      SSL_set_connect_state(ssl_.get());
  }

  void start() { pump(); }
  const std::string& received() const { return received_; }
  const std::string& error() const { return error_; }
  int key_updates() const { return key_updates_; }  // by the peer

 private:
  static int choose(SSL*, const unsigned char** chosen, unsigned char* size, const unsigned char* offered,
                    unsigned, void* self) {
    const std::string_view first(reinterpret_cast<const char*>(offered + 1), *offered);
    if (first != static_cast<RawTls*>(self)->options_.application) return SSL_TLSEXT_ERR_ALERT_FATAL;
    *chosen = offered + 1;
    *size = *offered;
    return SSL_TLSEXT_ERR_OK;
  }

  void pump() {
    bool more = true;
    while (more) {
      std::byte bytes[4096];
      const std::span<std::byte> into[] = {bytes};
      std::error_code error;
      const std::size_t size = stream_->read(into, error);
      if (size > 0) BIO_write(in_, bytes, static_cast<int>(size));
      more = size > 0;
      if (error && error != asio::error::would_block) BIO_set_mem_eof_return(in_, 0);
      work();
      flush();
      if (error && error != asio::error::would_block) return;
    }
    stream_->when_readable([this] { pump(); });
  }

  void work() {
    if (!error_.empty()) return;
    ERR_clear_error();
    if (!SSL_is_init_finished(ssl_.get()) && judge(SSL_do_handshake(ssl_.get())) <= 0) return;
    if (!sent_) judge(SSL_write(ssl_.get(), message, static_cast<int>(std::strlen(message))));
    sent_ = true;
    for (;;) {
      char bytes[4096];
      const int size = judge(SSL_read(ssl_.get(), bytes, sizeof bytes));
      if (size <= 0) return;
      received_.append(bytes, static_cast<std::size_t>(size));
    }
  }
  int judge(int result) {
    const int why = SSL_get_error(ssl_.get(), result);
    if (why == SSL_ERROR_SSL) error_ = ERR_reason_error_string(ERR_peek_error());
    return result;
  }
  void flush() {
    char* data = nullptr;
    const long size = BIO_get_mem_data(out_, &data);
    if (size <= 0) return;
    const std::span<const std::byte> from[] = {
        std::as_bytes(std::span(data, static_cast<std::size_t>(size)))};
    std::error_code error;
    stream_->write(from, error);  // the pair has room for all of this
    BIO_reset(out_);
  }

  RawOptions options_;
  std::unique_ptr<rpc::ByteStream> stream_;
  TlsContext context_;
  TlsSession ssl_;
  BIO *in_, *out_;
  bool sent_ = false;
  int key_updates_ = 0;
  std::string received_, error_;
};

// weft's side of TLS, connected to a RawTls.
struct RawPair {
  static constexpr const char* message = "from weft";

  RawPair(const rpc::Credentials& credentials, RawOptions options,
          rpc::ExpectedPeer expected = {.host = "x"}) {
    auto ends = PairedStream::make(loop);
    auto stream = options.server
                      ? rpc::make_tls_stream(std::move(ends.first), credentials, std::move(expected), loop)
                      : rpc::make_tls_stream(std::move(ends.first), credentials, std::nullopt, loop);
    ours = std::make_unique<Talker>(std::move(stream), message);
    theirs = std::make_unique<RawTls>(std::move(ends.second), std::move(options));
  }
  void run() {
    ours->start();
    theirs->start();
    loop->run();
  }

  std::shared_ptr<ManualLoop> loop = std::make_shared<ManualLoop>();
  std::unique_ptr<Talker> ours;
  std::unique_ptr<RawTls> theirs;
};

}  // namespace weft::test

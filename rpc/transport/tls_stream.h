// TlsStream: TLS 1.3 over another ByteStream. Both sides authenticate with their Credentials.
//
// The handshake is part of reading and writing: each read, write or wait drives it. No data is delivered or
// accepted before the peer is authenticated, and identity() is empty until then. A client completes its
// handshake before the server has verified the client's certificate, so a refusal is the result of the
// client's first read. A stream that ends without the peer's TLS close fails with an error, not eof. Written
// bytes that the lower stream does not accept yet (at most settings.batch) are kept and sent later. close()
// discards them, shut_down_writing() does not.
#pragma once

#include <weft/rpc/security/credentials.h>
#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/tls_error.h>

struct ssl_st;

namespace weft::rpc {

struct ConnectionOptions;
struct HandshakeNotes;
struct TlsFailure;
class TlsWire;

// The server that a client expects. The server's certificate must contain each name that is set. One name
// must be set, unless the client sets `any`, which accepts any peer that the credentials trust. A pre-shared
// secret proves that the server belongs to the job, but does not prove a name.
struct ExpectedPeer {
  std::string host;   // the dialled host: a DNS name or an IP address, which must be an alternative name
  std::string agent;  // an agent's name: the alternative name URI weft://NAME, or DNS without wildcards
  bool any = false;
};

// The limits of one stream. Programs use the defaults.
struct TlsSettings {
  std::size_t batch = 64 << 10;  // bytes that are encrypted before the lower stream has accepted them
  // The number of records of 16 KiB that one key encrypts. The limit of AES-GCM is 2^24.5 (RFC 8446, 5.5).
  std::uint64_t records_per_key = 1ULL << 23;
};

class WEFT_EXPORT TlsStream final : public ByteStream {
 public:
  // The constructor with `expected` makes a client. It throws invalid_argument if `expected` is empty or has
  // an invalid name. The other constructor makes a server. credentials: the stream uses their current state;
  // later changes do not affect it. loop: the loop of `lower`.
  TlsStream(std::unique_ptr<ByteStream> lower, const Credentials& credentials, ExpectedPeer expected,
            std::shared_ptr<Loop> loop, TlsSettings settings = {});
  TlsStream(std::unique_ptr<ByteStream> lower, const Credentials& credentials, std::shared_ptr<Loop> loop,
            TlsSettings settings = {});
  ~TlsStream() override;

  std::size_t read(std::span<const std::span<std::byte>> into, std::error_code& error) override;
  std::size_t write(std::span<const std::span<const std::byte>> from, std::error_code& error) override;
  void when_readable(Callback job) override;
  void when_writable(Callback job) override;
  void shut_down_writing(std::error_code& error) override;
  void close() override;
  bool is_network_flow() const override;
  void move_to(std::shared_ptr<Loop> loop) override;

  std::string describe() const override;
  // "cert:NAME" (from the certificate: the first weft:// URI, otherwise the first DNS name, otherwise the
  // common name) or "psk:ID".
  std::string identity() const override { return identity_; }
  std::optional<HostPair> hosts() const override;
  std::string explain(const std::error_code& error) const override;

 private:
  enum class State { handshake, open, failed, closed };
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };

  TlsStream(bool server, std::unique_ptr<ByteStream> lower, const Credentials& credentials,
            ExpectedPeer expected, std::shared_ptr<Loop> loop, TlsSettings settings);

  bool usable(std::error_code& error);  // drives the handshake; false: sets `error`
  void step();
  void admit();  // the handshake has completed: checks and stores the peer's identity
  void end_own_direction();
  void fail(TlsFailure failure);
  void flush();
  void learn_why_writing_failed();
  bool encrypt(std::span<const std::byte> record);

  bool readable_now() const;
  bool writable_now() const;
  void await_reading();  // request a call of the lower stream; at most one of each is pending
  void await_writing();
  void lower_is_readable();
  void lower_is_writable();
  void wake_soon();
  void wake(bool readable);

  const bool server_;
  std::shared_ptr<Loop> loop_;
  const TlsSettings settings_;
  // ssl_ uses these three members. It is declared after them, so it is destroyed first.
  std::shared_ptr<const CredentialSnapshot> credentials_;
  std::unique_ptr<HandshakeNotes> notes_;
  std::unique_ptr<TlsWire> wire_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;

  State state_ = State::handshake;
  bool started_ = false;
  bool starved_ = false;             // OpenSSL needs bytes, and the lower stream has none to read
  bool peer_ended_ = false;          // the peer's TLS close was received
  bool shutdown_requested_ = false;  // shut_down_writing() was called
  // true: nothing is written after the pending bytes. When the lower stream has accepted these bytes,
  // TlsStream closes the lower stream's own direction.
  bool last_written_ = false;
  bool lower_ended_ = false;
  std::uint64_t records_ = 0;  // the number of records since the last key update
  std::string identity_;
  std::error_code failure_;
  std::string failure_text_;

  Callback readable_, writable_;
  bool awaits_reading_ = false, awaits_writing_ = false, wakes_soon_ = false;
  std::shared_ptr<void> alive_;  // posted jobs check that it exists
};

// Add TLS to a transport's stream if the options have credentials, otherwise return the stream. host: the
// dialled host; empty for an address without a host, such as the path of a socket.
WEFT_EXPORT std::unique_ptr<ByteStream> secured_client(std::unique_ptr<ByteStream> stream,
                                                       const ConnectionOptions& options,
                                                       const std::string& host,
                                                       const std::shared_ptr<Loop>& loop);
WEFT_EXPORT std::unique_ptr<ByteStream> secured_server(std::unique_ptr<ByteStream> stream,
                                                       const ConnectionOptions& options,
                                                       const std::shared_ptr<Loop>& loop);

}  // namespace weft::rpc

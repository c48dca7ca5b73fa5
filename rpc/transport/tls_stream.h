// TlsStream: TLS 1.3 over another ByteStream, both sides proven by their Credentials.
//
// The handshake is part of reading and writing: whoever reads, writes or waits drives it, and nothing is
// delivered or taken before the peer has proven itself; identity() is empty until then. A client is done
// before the server has looked at its certificate: a refusal then ends what is read first. A stream that ends
// without the peer's TLS close is an error, not eof. What was written and the lower stream does not take yet
// (settings.batch at most) waits here and follows by itself; close() leaves it unsent, shut_down_writing()
// does not.
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

// Whom a client means to reach; each name that is set must be proven by the server's certificate, and one is
// set unless the client says `any`: any peer that the credentials trust. A secret proves that the server
// belongs to the job, and no name.
struct ExpectedPeer {
  std::string host;   // what was dialled: a DNS name or an IP address, which must be an alternative name
  std::string agent;  // an agent's name: the alternative name URI weft://agent, or DNS without wildcards
  bool any = false;
};

struct TlsSettings {
  std::size_t batch = 64 << 10;                // bytes encrypted before the lower stream gets them
  std::uint64_t records_per_key = 1ULL << 23;  // of 16 KiB; AES-GCM wears out after 2^24.5 (RFC 8446, 5.5)
};

class WEFT_EXPORT TlsStream final : public ByteStream {
 public:
  // With ExpectedPeer: a client. Throws invalid_argument where that is empty or no name.
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

  std::string describe() const override;
  // "cert:NAME" (of the certificate's first weft:// URI, else its first DNS name, else its common name) or
  // "psk:ID".
  std::string identity() const override { return identity_; }
  std::string explain(const std::error_code& error) const override;

 private:
  enum class State { handshake, open, failed, closed };
  struct FreeSsl {
    void operator()(ssl_st* ssl) const;
  };

  TlsStream(bool server, std::unique_ptr<ByteStream> lower, const Credentials& credentials,
            ExpectedPeer expected, std::shared_ptr<Loop> loop, TlsSettings settings);

  bool usable(std::error_code& error);  // drives the handshake; false: `error` says why not
  void step();
  void admit();  // the handshake is over: who is it?
  void end_own_direction();
  void fail(TlsFailure failure);
  void flush();
  void learn_why_writing_failed();
  bool encrypt(std::span<const std::byte> record);

  bool readable_now() const;
  bool writable_now() const;
  void await_reading();  // of the lower stream; one job each is under way at most
  void await_writing();
  void lower_is_readable();
  void lower_is_writable();
  void wake_soon();
  void wake(bool readable);

  const bool server_;
  const std::shared_ptr<Loop> loop_;
  const TlsSettings settings_;
  // In the order that OpenSSL's objects need: the SSL uses all of them.
  std::shared_ptr<const CredentialSnapshot> credentials_;
  std::unique_ptr<HandshakeNotes> notes_;
  std::unique_ptr<TlsWire> wire_;
  std::unique_ptr<ssl_st, FreeSsl> ssl_;

  State state_ = State::handshake;
  bool started_ = false;
  bool starved_ = false;     // OpenSSL has nothing more to read until the lower stream has
  bool peer_ended_ = false;  // its close came
  bool ending_ = false;      // shut_down_writing() was called
  bool last_written_ =
      false;  // nothing is written after what is pending, then the lower stream's direction ends
  bool lower_ended_ = false;
  std::uint64_t records_ = 0;  // since the key was changed
  std::string identity_;
  std::error_code failure_;
  std::string failure_text_;

  Callback readable_, writable_;
  bool awaits_reading_ = false, awaits_writing_ = false, wakes_soon_ = false;
  std::shared_ptr<void> alive_;  // what posted jobs look at
};

WEFT_EXPORT std::unique_ptr<ByteStream> tls_client(std::unique_ptr<ByteStream> lower,
                                                   const Credentials& credentials, ExpectedPeer expected,
                                                   std::shared_ptr<Loop> loop);
WEFT_EXPORT std::unique_ptr<ByteStream> tls_server(std::unique_ptr<ByteStream> lower,
                                                   const Credentials& credentials,
                                                   std::shared_ptr<Loop> loop);

// What a transport makes of its streams: TLS over them where the options have credentials, else as they are.
// host: that was dialled; empty: an address of this host without one, such as the path of a socket.
WEFT_EXPORT std::unique_ptr<ByteStream> secured_client(std::unique_ptr<ByteStream> stream,
                                                       const ConnectionOptions& options,
                                                       const std::string& host,
                                                       const std::shared_ptr<Loop>& loop);
WEFT_EXPORT std::unique_ptr<ByteStream> secured_server(std::unique_ptr<ByteStream> stream,
                                                       const ConnectionOptions& options,
                                                       const std::shared_ptr<Loop>& loop);

}  // namespace weft::rpc

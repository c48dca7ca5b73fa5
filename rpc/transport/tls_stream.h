// TLS 1.3 over another ByteStream. Both sides authenticate with their Credentials.
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

namespace weft::rpc {

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

// expected: nullopt makes a server. Throws invalid_argument if no name is set in it, or an invalid one.
// credentials: the stream uses their current state; later changes do not affect it. loop: the loop of
// `lower`. identity() is "cert:NAME" (from the certificate: the first weft:// URI, otherwise the first DNS
// name, otherwise the common name) or "psk:ID".
WEFT_EXPORT std::unique_ptr<ByteStream> make_tls_stream(std::unique_ptr<ByteStream> lower,
                                                        const Credentials& credentials,
                                                        std::optional<ExpectedPeer> expected,
                                                        std::shared_ptr<Loop> loop,
                                                        TlsSettings settings = {});

}  // namespace weft::rpc

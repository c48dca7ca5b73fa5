// TlsFailure: what OpenSSL's error means, as one of weft's and in words.
#pragma once

#include <weft/rpc/security/internal/credential_snapshot.h>
#include <weft/rpc/transport/internal/tls_wire.h>

#include <string>
#include <system_error>

namespace weft::rpc {

struct TlsFailure {
  std::error_code code;
  std::string text;  // "": the code's message says it all
};

// After a call of OpenSSL that failed for good. Empties this thread's error queue.
TlsFailure tls_failure(SSL* ssl, const HandshakeNotes& notes, const TlsWire& wire, bool in_handshake);

}  // namespace weft::rpc

// TlsFailure: OpenSSL's error, translated into a TlsError and a text.
#pragma once

#include <weft/rpc/security/internal/credential_snapshot.h>
#include <weft/rpc/transport/internal/tls_wire.h>

#include <string>
#include <system_error>

namespace weft::rpc {

struct TlsFailure {
  std::error_code code;
  std::string text;  // "": the message of the code is sufficient
};

// Call it after a function of OpenSSL has failed permanently. Empties this thread's error queue.
TlsFailure tls_failure(SSL* ssl, const HandshakeNotes& notes, const TlsWire& wire, bool in_handshake);

}  // namespace weft::rpc

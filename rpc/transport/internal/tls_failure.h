// TlsFailure: OpenSSL's error, translated.
#pragma once

#include <weft/rpc/security/internal/credential_snapshot.h>
#include <weft/rpc/transport/tls_error.h>

#include <string_view>

namespace weft::rpc {

struct TlsFailure {
  std::error_code code;
  std::string text = {};  // "": the message of the code is sufficient
};

// Call it after a function of OpenSSL has failed permanently. Empties this thread's error queue. begin: the
// first bytes that were received.
TlsFailure tls_failure(ssl_st* ssl, const HandshakeNotes& notes, std::string_view begin, bool in_handshake);

}  // namespace weft::rpc

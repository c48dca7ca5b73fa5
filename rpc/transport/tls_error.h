// TlsError: the reasons for which a TLS stream fails, during or after its handshake, as std::error_code.
//
// The message describes the error; ByteStream::explain() of the stream adds details ("the peer's certificate
// is for 'b', not 'a'"). Thread-safety: values.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>
#include <system_error>

namespace weft::rpc {

enum class TlsError {
  // The received bytes are wrong.
  no_tls = 1,       // the peer does not speak TLS
  no_weft,          // the peer speaks TLS with another application protocol
  old_version,      // the peer does not speak TLS 1.3
  handshake_ended,  // the peer closed the connection during the handshake
  truncated,        // the stream ended without the peer's TLS close: an attacker may have cut it off
  damaged,          // a record was changed in transit
  protocol,         // the peer violated the TLS protocol
  internal,         // OpenSSL failed on this side

  // This side refuses the peer's credentials.
  certificate_missing = 100,
  certificate_expired,
  certificate_not_yet_valid,
  certificate_untrusted,    // this side does not trust the certificate's authority
  certificate_for_another,  // the certificate has another name
  certificate_unfit,        // it has no name, a weak key or a bad signature, or is not for this use
  secret_missing,
  secret_unknown,  // this side does not know the id of the secret
  secret_wrong,    // the secret differs from this side's secret with the same id

  // The peer refuses this side's credentials, as its alert states.
  own_certificate_missing = 200,
  own_certificate_expired,
  own_certificate_untrusted,
  own_certificate_refused,  // for another reason
  own_secret_refused,
  refused,  // the alert states no reason
};

// "weft.tls". A TlsError converts to an std::error_code of this category.
WEFT_EXPORT const std::error_category& tls_category();
inline std::error_code make_error_code(TlsError error) { return {static_cast<int>(error), tls_category()}; }

// Whether one side refuses the other: its credentials are wrong, expired or missing, or it does not speak
// TLS. Such an error is logged and counted, and is not retried.
WEFT_EXPORT bool is_refusal(const std::error_code& error);

}  // namespace weft::rpc

template <>
struct std::is_error_code_enum<weft::rpc::TlsError> : std::true_type {};

// TlsError: why a TLS stream ended or never came about, as an std::error_code.
//
// The message says what is wrong; ByteStream::explain() of the stream adds whom it concerns ("the peer's
// certificate is for 'b', not 'a'"). Thread-safety: values.
#pragma once

#include <weft/rpc/core/export.h>

#include <system_error>

namespace weft::rpc {

enum class TlsError {
  // What came is not what it should be.
  no_tls = 1,       // the peer does not speak TLS
  no_weft,          // it does, but for another application
  old_version,      // it does not speak TLS 1.3
  handshake_ended,  // it closed the connection during the handshake
  truncated,        // the stream ended where the peer had not ended it: somebody may have cut it
  damaged,          // a record was changed on its way
  protocol,         // the peer broke the rules of TLS
  internal,         // OpenSSL failed here

  // The peer's credentials, which this side refuses.
  certificate_missing = 100,
  certificate_expired,
  certificate_not_yet_valid,
  certificate_untrusted,    // from no authority that is trusted here
  certificate_for_another,  // names somebody else
  certificate_unfit,        // nameless, not for this use, a weak key, a bad signature
  secret_missing,
  secret_unknown,  // of an id that is not known here
  secret_wrong,    // another than the one of this id here

  // This side's credentials, which the peer refuses: what its alert says.
  own_certificate_missing = 200,
  own_certificate_expired,
  own_certificate_untrusted,
  own_certificate_refused,  // for another reason
  own_secret_refused,
  refused,  // nothing more is known
};

WEFT_EXPORT const std::error_category& tls_category();
inline std::error_code make_error_code(TlsError error) { return {static_cast<int>(error), tls_category()}; }

// Whether the peer's credentials were wrong, expired or missing, as they are where it speaks no TLS: what is
// logged, counted, and no reason to try again.
WEFT_EXPORT bool refuses_peer(const std::error_code& error);
// Whether the peer refused this side's.
WEFT_EXPORT bool refused_by_peer(const std::error_code& error);

}  // namespace weft::rpc

template <>
struct std::is_error_code_enum<weft::rpc::TlsError> : std::true_type {};

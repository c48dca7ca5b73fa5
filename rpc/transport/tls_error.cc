#include <weft/rpc/transport/tls_error.h>

#include <weft/rpc/security/internal/certificate_names.h>
#include <weft/rpc/transport/internal/tls_failure.h>
#include <weft/rpc/wire/frame.h>

#include <openssl/sslerr.h>

#include <utility>

namespace weft::rpc {
namespace {

constexpr std::pair<TlsError, const char*> messages[] = {
    {TlsError::no_tls, "the peer does not speak TLS"},
    {TlsError::no_weft, "the peer speaks TLS, but not weft"},
    {TlsError::old_version, "the peer does not speak TLS 1.3"},
    {TlsError::handshake_ended, "the peer closed the connection during the TLS handshake"},
    {TlsError::truncated, "the stream was cut off: it ended without the peer's TLS close"},
    {TlsError::damaged, "a TLS record was modified in transit"},
    {TlsError::protocol, "the peer violated the TLS protocol"},
    {TlsError::internal, "OpenSSL failed on this side"},
    {TlsError::certificate_missing, "the peer offered no certificate"},
    {TlsError::certificate_expired, "the peer's certificate is expired"},
    {TlsError::certificate_not_yet_valid, "the peer's certificate is not yet valid"},
    {TlsError::certificate_untrusted, "the peer's certificate is from no authority that this side trusts"},
    {TlsError::certificate_for_another, "the peer's certificate is for another name"},
    {TlsError::certificate_unfit, "the peer's certificate is not valid for this use"},
    {TlsError::secret_missing, "the peer offered no pre-shared secret"},
    {TlsError::secret_unknown, "unknown pre-shared secret"},
    {TlsError::secret_wrong, "the peer's pre-shared secret differs from the secret of this side"},
    {TlsError::own_certificate_missing, "the peer demands a certificate, and this side has none"},
    {TlsError::own_certificate_expired, "the peer refused this side's certificate: it is expired"},
    {TlsError::own_certificate_untrusted,
     "the peer refused this side's certificate: the peer does not trust its authority"},
    {TlsError::own_certificate_refused, "the peer refused this side's certificate"},
    {TlsError::own_secret_refused,
     "the peer refused this side's pre-shared secret: it is unknown to the peer, or differs for that id"},
    {TlsError::refused, "the peer refused the TLS handshake"},
};

class TlsCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "weft.tls"; }
  std::string message(int value) const override {
    for (const auto& [error, message] : messages)
      if (static_cast<int>(error) == value) return message;
    return "TLS error " + std::to_string(value);
  }
};

constinit const TlsCategory category;

TlsFailure detailed(TlsError error, const std::string& detail) {
  return {error, make_error_code(error).message() + (detail.empty() ? "" : ": " + detail)};
}

// Returns the first TLS reason in the queue; later entries of OpenSSL explain less.
int reason_of_queue(std::string& words) {
  int found = 0;
  while (const unsigned long code = ERR_get_error()) {
    const char* text = ERR_reason_error_string(code);
    if (found == 0 && text != nullptr) words = text;
    if (ERR_GET_LIB(code) == ERR_LIB_SSL && found == 0) found = ERR_GET_REASON(code);
  }
  return found;
}

TlsFailure of_verification(const HandshakeNotes& notes) {
  const bool own = notes.verify_depth == 0;
  const std::string whose = own ? "the peer's certificate, for " + notes.certificate_names + ","
                                : "the certificate of an authority, on which that of the peer (" +
                                      notes.certificate_names + ") depends,";
  switch (notes.verify_error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return {TlsError::certificate_expired, whose + " is expired"};
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return {TlsError::certificate_not_yet_valid, whose + " is not yet valid"};
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return {TlsError::certificate_for_another, "the peer's certificate is for " + notes.certificate_names +
                                                     ", not '" + printable(notes.wanted_name) + "'"};
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:  // of an authority with only the name of a trusted one
    case X509_V_ERR_CERT_UNTRUSTED:
      if (!notes.credentials->has_certificate())
        return {TlsError::certificate_untrusted,
                "the peer, " + notes.certificate_names +
                    ", has a certificate, but this side has only a pre-shared secret"};
      return {TlsError::certificate_untrusted,
              "the peer's certificate, for " + notes.certificate_names + ", is " +
                  (notes.verify_error == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT ? "self-signed, and " : "") +
                  "from no authority that this side trusts"};
    default:
      break;
  }
  if (notes.nameless)
    return {TlsError::certificate_unfit,
            "the peer's certificate names no agent by URI:weft://NAME, DNS or common name"};
  return {TlsError::certificate_unfit,
          whose + " is not valid for this use: " + X509_verify_cert_error_string(notes.verify_error)};
}

// The error of a server that received neither a known secret nor a certificate.
TlsFailure of_nothing_proven(const HandshakeNotes& notes) {
  if (!notes.unknown_secret.empty())
    return {TlsError::secret_unknown, "unknown pre-shared secret '" + notes.unknown_secret + "'"};
  return {notes.credentials->has_certificate() ? TlsError::certificate_missing : TlsError::secret_missing};
}

TlsFailure of_alert(SSL* ssl, int alert, const HandshakeNotes& notes, bool in_handshake) {
  const std::string words = std::string("alert '") + SSL_alert_desc_string_long(alert) + "'";
  if (in_handshake && SSL_is_server(ssl) && !notes.unknown_secret.empty())
    return {TlsError::secret_unknown, "unknown pre-shared secret '" + notes.unknown_secret +
                                          "', and the peer did not continue with certificates: " + words};
  switch (alert) {
    case SSL_AD_CERTIFICATE_EXPIRED:
      return {TlsError::own_certificate_expired};
    case SSL_AD_UNKNOWN_CA:
      return {TlsError::own_certificate_untrusted};
    case SSL_AD_BAD_CERTIFICATE:
    case SSL_AD_UNSUPPORTED_CERTIFICATE:
    case SSL_AD_CERTIFICATE_REVOKED:
    case SSL_AD_CERTIFICATE_UNKNOWN:
      return detailed(TlsError::own_certificate_refused, words);
    case SSL_AD_CERTIFICATE_REQUIRED:
      if (!notes.secret.empty())
        return detailed(TlsError::own_secret_refused, "'" + notes.secret + "', and it demands a certificate");
      return {TlsError::own_certificate_missing};
    case SSL_AD_PROTOCOL_VERSION:
      return {TlsError::old_version};
    case SSL_AD_NO_APPLICATION_PROTOCOL:
      return {TlsError::no_weft};
    case SSL_AD_BAD_RECORD_MAC:
      return {TlsError::damaged};
    case SSL_AD_HANDSHAKE_FAILURE:
    case SSL_AD_ILLEGAL_PARAMETER:
    case SSL_AD_DECRYPT_ERROR:
    case SSL_AD_UNKNOWN_PSK_IDENTITY:
      if (in_handshake && !SSL_is_server(ssl) && !notes.secret.empty())
        return detailed(TlsError::own_secret_refused, "'" + notes.secret + "'");
      break;
    default:
      break;
  }
  return detailed(in_handshake ? TlsError::refused : TlsError::protocol, words);
}

}  // namespace

const std::error_category& tls_category() { return category; }

bool is_refusal(const std::error_code& error) {
  return error == TlsError::no_tls || (error.category() == tls_category() && error.value() >= 100);
}

TlsFailure tls_failure(ssl_st* ssl, const HandshakeNotes& notes, std::string_view begin, bool in_handshake) {
  std::string words;
  const int reason = reason_of_queue(words);
  if (reason >= SSL_AD_REASON_OFFSET && reason < SSL_AD_REASON_OFFSET + 256)
    return of_alert(ssl, reason - SSL_AD_REASON_OFFSET, notes, in_handshake);
  switch (reason) {
    case SSL_R_UNEXPECTED_EOF_WHILE_READING:
      return {in_handshake ? TlsError::handshake_ended : TlsError::truncated};
    case SSL_R_CERTIFICATE_VERIFY_FAILED:
      return of_verification(notes);
    case SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE:
      return of_nothing_proven(notes);
    case SSL_R_BINDER_DOES_NOT_VERIFY:
      return {TlsError::secret_wrong,
              "the peer's pre-shared secret '" + notes.secret + "' differs from the secret of this side"};
    case SSL_R_DECRYPTION_FAILED_OR_BAD_RECORD_MAC:
      return {TlsError::damaged};
    default:
      break;
  }
  if (in_handshake && begin.size() >= 2 && !begins_like_tls(std::as_bytes(std::span(begin))))
    return detailed(TlsError::no_tls, begin == "WEFT" ? "it speaks weft without credentials" : "");
  switch (reason) {
    case SSL_R_UNSUPPORTED_PROTOCOL:
    case SSL_R_VERSION_TOO_LOW:
    case SSL_R_WRONG_SSL_VERSION:
    case SSL_R_NO_PROTOCOLS_AVAILABLE:
    case SSL_R_BAD_PROTOCOL_VERSION_NUMBER:
      return {TlsError::old_version};
    case SSL_R_NO_SHARED_CIPHER:
    case SSL_R_NO_SUITABLE_SIGNATURE_ALGORITHM:
    case SSL_R_NO_CERTIFICATE_SET:
    case SSL_R_NO_CERTIFICATE_ASSIGNED:
      if (SSL_is_server(ssl) && !notes.credentials->has_certificate()) return of_nothing_proven(notes);
      break;
    case SSL_R_NO_APPLICATION_PROTOCOL:
      return {TlsError::no_weft};
    default:
      break;
  }
  return detailed(reason == 0 ? TlsError::internal : TlsError::protocol, words);
}

}  // namespace weft::rpc

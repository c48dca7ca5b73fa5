#include <weft/rpc/transport/tls_error.h>

#include <string>
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

}  // namespace

const std::error_category& tls_category() { return category; }

bool is_refusal(const std::error_code& error) {
  return error == TlsError::no_tls || (error.category() == tls_category() && error.value() >= 100);
}

}  // namespace weft::rpc

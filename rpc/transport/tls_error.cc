#include <weft/rpc/transport/tls_error.h>

#include <string>

namespace weft::rpc {
namespace {

class TlsCategory final : public std::error_category {
 public:
  const char* name() const noexcept override { return "weft.tls"; }
  std::string message(int value) const override {
    switch (static_cast<TlsError>(value)) {
      case TlsError::no_tls:
        return "the peer does not speak TLS";
      case TlsError::no_weft:
        return "the peer speaks TLS, but not weft";
      case TlsError::old_version:
        return "the peer does not speak TLS 1.3";
      case TlsError::handshake_ended:
        return "the peer closed the connection during the TLS handshake";
      case TlsError::truncated:
        return "the stream was cut off: it ended without the peer's TLS close";
      case TlsError::damaged:
        return "a TLS record was modified in transit";
      case TlsError::protocol:
        return "the peer violated the TLS protocol";
      case TlsError::internal:
        return "OpenSSL failed on this side";
      case TlsError::certificate_missing:
        return "the peer offered no certificate";
      case TlsError::certificate_expired:
        return "the peer's certificate is expired";
      case TlsError::certificate_not_yet_valid:
        return "the peer's certificate is not yet valid";
      case TlsError::certificate_untrusted:
        return "the peer's certificate is from no authority that this side trusts";
      case TlsError::certificate_for_another:
        return "the peer's certificate is for another name";
      case TlsError::certificate_unfit:
        return "the peer's certificate is not valid for this use";
      case TlsError::secret_missing:
        return "the peer offered no pre-shared secret";
      case TlsError::secret_unknown:
        return "unknown pre-shared secret";
      case TlsError::secret_wrong:
        return "the peer's pre-shared secret differs from the secret of this side";
      case TlsError::own_certificate_missing:
        return "the peer demands a certificate, and this side has none";
      case TlsError::own_certificate_expired:
        return "the peer refused this side's certificate: it is expired";
      case TlsError::own_certificate_untrusted:
        return "the peer refused this side's certificate: the peer does not trust its authority";
      case TlsError::own_certificate_refused:
        return "the peer refused this side's certificate";
      case TlsError::own_secret_refused:
        return "the peer refused this side's pre-shared secret: it is unknown to the peer, or differs for "
               "that "
               "id";
      case TlsError::refused:
        return "the peer refused the TLS handshake";
    }
    return "TLS error " + std::to_string(value);
  }
};

constinit const TlsCategory category;

bool within(const std::error_code& error, int first, int end) {
  return error.category() == tls_category() && error.value() >= first && error.value() < end;
}

}  // namespace

const std::error_category& tls_category() { return category; }

bool refuses_peer(const std::error_code& error) {
  return error == TlsError::no_tls || within(error, 100, 200);
}
bool refused_by_peer(const std::error_code& error) { return within(error, 200, 300); }

}  // namespace weft::rpc

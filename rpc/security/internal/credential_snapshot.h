// CredentialSnapshot: the credentials as read at one time, ready for connections. Immutable.
//
// It contains an SSL_CTX for both sides: TLS 1.3 only, no resumption, no early data, no tickets, ALPN "weft".
// Each connection keeps its snapshot by shared_ptr, and passes a HandshakeNotes to OpenSSL's callbacks, which
// record the details of an error there. Thread-safe: the functions are const, and OpenSSL's contexts may be
// shared if they do not change.
#pragma once

#include <weft/rpc/security/internal/openssl.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

inline constexpr std::string_view tls_application = "weft";  // for ALPN, to reject other users of TLS

// The contents of the files, as text.
struct CredentialMaterial {
  struct Text {
    std::string text;
    std::string source;  // for messages: "certificate_file '/etc/weft/worker1.pem'"
  };
  Text certificate, key, trust;
  struct Secret {
    std::string id, bytes, source;
  };
  std::vector<Secret> secrets;
};

// The details of one handshake, for the error of that handshake. Must live as long as the SSL of the
// handshake.
struct HandshakeNotes {
  const class CredentialSnapshot* credentials = nullptr;
  std::string expected_agent;  // client: the name that the certificate must contain, if not empty
  std::string host;            // client: the dialled host
  std::string unknown_secret;  // server: the id that the client offers, if it is unknown; printable
  std::string secret;          // client: the id that it offers; server: the id that it has found
  int verify_error = X509_V_OK;
  int verify_depth = 0;           // 0: the peer's own certificate, otherwise an authority's
  bool nameless = false;          // the certificate is valid, but contains no name
  std::string certificate_names;  // the names in the peer's certificate
  std::string wanted_name;        // the expected name
};

class CredentialSnapshot {
 public:
  explicit CredentialSnapshot(const CredentialMaterial& material);  // throws invalid_argument
  ~CredentialSnapshot();

  // Makes the TLS state of one connection. A client verifies notes.host and notes.expected_agent. `notes`
  // must outlive it. Throws internal if OpenSSL has no memory.
  openssl::Ssl make(HandshakeNotes& notes, bool server) const;

  bool has_certificate() const { return certificate_ != nullptr; }
  std::optional<std::chrono::system_clock::time_point> expires() const;
  std::string name() const;
  std::string describe() const;

 private:
  struct Secret {
    std::string id;
    std::vector<unsigned char> key;
  };

  void use_certificate(const CredentialMaterial& material);
  void use_trust(const CredentialMaterial::Text& trust);
  void use_secrets(const std::vector<CredentialMaterial::Secret>& secrets);
  static int use_secret(SSL* ssl, const Secret& secret, SSL_SESSION** found);

  // OpenSSL's callbacks.
  static int verify(int so_far, X509_STORE_CTX* chain);
  static int offer_secret(SSL* ssl, const EVP_MD* digest, const unsigned char** id, std::size_t* id_size,
                          SSL_SESSION** found);
  static int find_secret(SSL* ssl, const unsigned char* id, std::size_t id_size, SSL_SESSION** found);
  static int choose_application(SSL* ssl, const unsigned char** chosen, unsigned char* chosen_size,
                                const unsigned char* offered, unsigned int offered_size, void* self);

  openssl::Context context_;
  openssl::Certificate certificate_;
  std::vector<Secret> secrets_;
};

}  // namespace weft::rpc

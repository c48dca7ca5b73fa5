// TestAuthority: makes certificates for tests, in memory, within a millisecond each. For tests only: its keys
// are stored as text.
//
//   test::TestAuthority authority;
//   options.credentials = std::make_shared<rpc::Credentials>(authority.credentials("worker1"));
//
// To make a defective certificate, set a field of Request (another name, an expired time, a use that is not
// permitted), or use another authority. Thread-safety: const after construction.
#pragma once

#include <weft/rpc/security/credentials.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace weft::test {

class WEFT_EXPORT TestAuthority {
 public:
  enum class KeyKind { p256, ed25519, weak_rsa };  // weak: 1024 bits, which TLS refuses

  struct Request {
    std::string common_name;
    std::vector<std::string> dns, uris, addresses;  // alternative names; addresses as text, IPv4 or IPv6
    // The validity, relative to now.
    std::chrono::seconds begins = std::chrono::hours{-1};
    std::chrono::seconds ends = std::chrono::hours{1};
    // The purposes of the key: TLS clients, TLS servers. An authority's certificate has neither.
    bool for_clients = true, for_servers = true;

    bool authority = false;       // the key may issue certificates
    KeyKind key = KeyKind::p256;  // the kind of the new key
  };

  // A certificate, and its private key without a passphrase.
  struct Issued {
    std::string certificate, key;  // PEM
  };

  // A root authority with a new key, which is valid for an hour. name: its common name.
  explicit TestAuthority(const std::string& name = "weft test authority", KeyKind key = KeyKind::p256);
  // An intermediate authority. authority: its certificate and key, which another authority has issued.
  explicit TestAuthority(Issued authority);
  ~TestAuthority();

  // PEM, for CredentialOptions::trust_pem.
  const std::string& certificate() const { return own_.certificate; }

  // A certificate of this authority with a new key.
  Issued issue(const Request& request) const;
  // The names of an agent on this host: weft://NAME, DNS NAME and localhost, 127.0.0.1 and ::1.
  static Request agent(const std::string& name);

  // An agent's credentials: a certificate of this authority, which is also the trusted authority.
  rpc::CredentialOptions credentials(const std::string& name) const { return credentials_for(agent(name)); }
  // Like credentials(), but with a certificate for `request`.
  rpc::CredentialOptions credentials_for(const Request& request) const;

  static Issued self_signed(const Request& request);  // its new key also signs it

 private:
  struct Objects;  // OpenSSL's objects

  Issued own_;
  std::unique_ptr<Objects> objects_;
};

}  // namespace weft::test

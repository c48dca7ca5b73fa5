// Credentials: the identity of an agent, and the peers that it trusts.
//
// Credentials contain a certificate with its key and the trusted authorities, or pre-shared secrets of the
// job, or both. An agent uses the same credentials for listening and connecting. Connections use TLS 1.3, and
// both sides authenticate. reload() reads the files again: later connections use the new contents, existing
// connections keep the old ones. To change a secret, use two valid secrets for some time (docs/security.md).
//
// The agents of a program share the object through shared_ptr. Thread-safety: all members may be called from
// any thread.
#pragma once

#include <weft/rpc/core/export.h>
#include <weft/rpc/core/mutex.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

class CredentialSnapshot;

// One secret: at least 16 bytes that cannot be guessed, with an id that is not secret.
struct SharedSecret {
  std::string id;     // 1 to 128 printable ASCII characters without blanks
  std::string bytes;  // the secret; set either `bytes` or `file`
  std::string file;   // a file with the secret; a line break at its end is not part of the secret
};

// Files are PEM and are read again by each reload(); fields with `pem` contain the same as text. Files with a
// key or a secret must not be readable by other users of the host.
struct CredentialOptions {
  std::string certificate_file, certificate_pem;  // the agent's certificate, then the chain to its authority
  std::string key_file, key_pem;                  // the key of that certificate, not encrypted
  std::string trust_file, trust_pem;              // trusted certificates: of authorities, or of single agents

  std::vector<SharedSecret> secrets;  // one or two: the first is offered, both are accepted
  // Instead of `secrets`: a file with one or two lines "ID SECRET", or with one secret alone, whose id is
  // then "job". Lines that begin with # are ignored. A reload may also change the number, the ids and the
  // order of the secrets.
  std::string secret_file;
};

class WEFT_EXPORT Credentials {
 public:
  // Throws invalid_argument, which names the defect: a file is missing or readable by others, the key does
  // not match the certificate, the certificate is expired or its key too weak, a secret is too short.
  explicit Credentials(CredentialOptions options);

  // reload() reads the files again, replace() uses other options. Both throw as the constructor does, and
  // then the credentials do not change.
  void reload();
  void replace(CredentialOptions options);  // later calls of reload() use these options

  // The expiry of the agent's certificate; nullopt without a certificate.
  std::optional<std::chrono::system_clock::time_point> expires() const;
  // The name in the agent's certificate, which the agent uses as its name; empty without a certificate.
  std::string name() const;
  // For logs: "certificate 'worker1' until 2031-02-03 04:05:06 UTC, secrets 'job7', 'job6'".
  std::string describe() const;

  // A connection takes a snapshot at its start and keeps it.
  std::shared_ptr<const CredentialSnapshot> snapshot() const;

 private:
  Mutex reloading_;  // one reload at a time
  mutable Mutex mutex_;
  CredentialOptions options_ WEFT_GUARDED_BY(reloading_);
  std::shared_ptr<const CredentialSnapshot> snapshot_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::rpc

// Credentials: what an agent proves itself with, and whom it trusts.
//
// A certificate with its key and the authorities that it trusts, or secrets that the job shares, or both. An
// agent listens and connects with the same ones; connections are TLS 1.3, both sides prove themselves.
// reload() takes what the files hold by then: connections that begin afterwards use it, those under way keep
// what they began with. A secret is changed by way of two that hold at once (docs/security.md).
//
// Shared by the agents of a program through shared_ptr. Thread-safety: all members may be called from any
// thread.
#pragma once

#include <weft/rpc/core/export.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace weft::rpc {

class CredentialSnapshot;

// One secret: bytes that nobody can guess, at least 16 of them, under a name that is no secret.
struct SharedSecret {
  std::string id;     // 1 to 128 printable ASCII characters without blanks
  std::string bytes;  // or
  std::string file;   // that holds them; a line break at its end is not part of the secret
};

// Files are PEM, read anew by each reload(); the fields with `pem` are the same as text. Files with a key or
// a secret must not be readable by other users of the host.
struct CredentialOptions {
  std::string certificate_file, certificate_pem;  // the agent's own first, then the way to its authority
  std::string key_file, key_pem;                  // of that certificate, not encrypted
  std::string trust_file, trust_pem;              // authorities: each certificate in it is trusted by itself

  std::vector<SharedSecret> secrets;  // one or two: the first is offered, either is accepted
  // Or a file of one or two lines "ID SECRET", or of the secret alone, whose id is then "job"; lines that
  // begin with # are left out. It can change the number, the ids and the order of the secrets, too.
  std::string secret_file;
};

class WEFT_EXPORT Credentials {
 public:
  // Throws invalid_argument, with what is wrong with which of them: a file is missing or readable by others,
  // the key is not the certificate's, the certificate is expired or its key too weak, a secret is too short.
  explicit Credentials(CredentialOptions options);
  ~Credentials();
  Credentials(const Credentials&) = delete;
  Credentials& operator=(const Credentials&) = delete;

  // Throws as the constructor does, and then leaves everything as it was.
  void reload();
  void replace(CredentialOptions options);  // and reload() from then on

  // When the own certificate expires; nothing where there is none.
  std::optional<std::chrono::system_clock::time_point> expires() const;
  // For logs: "certificate 'worker1' until 2031-02-03 04:05:06 UTC, secrets 'job7', 'job6'".
  std::string describe() const;

  // What a connection begins with and keeps.
  std::shared_ptr<const CredentialSnapshot> snapshot() const;

 private:
  std::mutex reloading_;      // one reload at a time; guards options_
  mutable std::mutex mutex_;  // guards snapshot_
  CredentialOptions options_;
  std::shared_ptr<const CredentialSnapshot> snapshot_;
};

}  // namespace weft::rpc

// Owners of OpenSSL's objects, and its errors as text.
//
// Only source files include this header; weft's public headers do not include OpenSSL's. The error queue
// belongs to the thread and is shared with the program, so clear it before a call whose error matters.
#pragma once

#include <weft/rpc/core/export.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>

namespace weft::rpc::openssl {

template <auto function>
struct Free {
  template <class T>
  void operator()(T* object) const {
    function(object);
  }
};
inline void free_names(GENERAL_NAMES* names) { GENERAL_NAMES_free(names); }

using Bio = std::unique_ptr<BIO, Free<BIO_free>>;
using BioMethod = std::unique_ptr<BIO_METHOD, Free<BIO_meth_free>>;
using Certificate = std::unique_ptr<X509, Free<X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Free<EVP_PKEY_free>>;
using Kdf = std::unique_ptr<EVP_KDF, Free<EVP_KDF_free>>;
using KdfContext = std::unique_ptr<EVP_KDF_CTX, Free<EVP_KDF_CTX_free>>;
using Names = std::unique_ptr<GENERAL_NAMES, Free<free_names>>;
using Session = std::unique_ptr<SSL_SESSION, Free<SSL_SESSION_free>>;
using Ssl = std::unique_ptr<SSL, Free<SSL_free>>;
using Context = std::unique_ptr<SSL_CTX, Free<SSL_CTX_free>>;

// The earliest error in this thread's queue, for users ("ee key too small"); "" if the queue is empty.
inline std::string first_error() {
  const unsigned long code = ERR_peek_error();
  if (code == 0) return {};
  const char* reason = ERR_reason_error_string(code);
  return reason != nullptr ? reason : "error " + std::to_string(code);
}

}  // namespace weft::rpc::openssl

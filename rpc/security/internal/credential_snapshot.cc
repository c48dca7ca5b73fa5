#include <weft/rpc/security/internal/credential_snapshot.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/security/internal/certificate_names.h>

#include <openssl/core_names.h>
#include <openssl/params.h>

#include <algorithm>
#include <cstring>
#include <ctime>

namespace weft::rpc {
namespace {

constexpr unsigned char cipher_of_secrets[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr std::size_t least_secret = 16, secret_key_size = 32;
// Secrets require SHA-256, so the server must not choose another hash. AES is first, because hardware
// supports it.
constexpr const char* ciphers_with_secrets = "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256";
constexpr const char* ciphers = "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256";

[[noreturn]] void refuse(const CredentialMaterial::Text& what, const std::string& why) {
  throw Error(ErrorKind::invalid_argument, what.source + ": " + why);
}

// Refuses a part of `from` if a function of OpenSSL has not returned 1.
void expect_done(int done, const CredentialMaterial::Text& from, const std::string& part) {
  if (done != 1) refuse(from, "OpenSSL refuses " + part + ": " + openssl::first_error());
}

[[noreturn]] void out_of_openssl() { throw Error(ErrorKind::internal, "OpenSSL: " + openssl::first_error()); }

std::string text_of(const ASN1_TIME* time) {
  std::tm broken{};
  char text[40];
  ASN1_TIME_to_tm(time, &broken);
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &broken);
  return text;
}

std::vector<openssl::Certificate> certificates_in(const CredentialMaterial::Text& from) {
  ERR_clear_error();
  const openssl::Bio bio(BIO_new_mem_buf(from.text.data(), static_cast<int>(from.text.size())));
  std::vector<openssl::Certificate> found;
  while (X509* next = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) found.emplace_back(next);
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  if (!ended) refuse(from, "a certificate in it cannot be read: " + openssl::first_error());
  ERR_clear_error();
  if (found.empty()) refuse(from, "there is no certificate (PEM) in it");
  return found;
}

openssl::Key key_in(const CredentialMaterial::Text& from) {
  ERR_clear_error();
  const openssl::Bio bio(BIO_new_mem_buf(from.text.data(), static_cast<int>(from.text.size())));
  bool encrypted = false;
  const auto no_password = [](char*, int, int, void* asked) {
    *static_cast<bool*>(asked) = true;  // otherwise OpenSSL would ask on the terminal
    return -1;
  };
  openssl::Key key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, &encrypted));
  if (encrypted) refuse(from, "the key is encrypted, expected one without a password");
  if (key == nullptr) refuse(from, "there is no private key (PEM) in it: " + openssl::first_error());
  return key;
}

// Derives a key that only TLS uses. If the key is disclosed, the secret stays unknown, and other uses of the
// secret do not weaken the key. The id is part of the derivation, so that it cannot be changed in transit.
std::vector<unsigned char> derive(const CredentialMaterial::Secret& secret) {
  std::string info = "weft tls psk 1";
  info += '\0';
  info += secret.id;
  const openssl::Kdf kdf(EVP_KDF_fetch(nullptr, "HKDF", nullptr));
  const openssl::KdfContext context(EVP_KDF_CTX_new(kdf.get()));
  char digest[] = "SHA256";
  std::string bytes = secret.bytes;
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest, 0),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_KEY, bytes.data(), bytes.size()),
      OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info.data(), info.size()),
      OSSL_PARAM_construct_end()};
  std::vector<unsigned char> key(secret_key_size);
  const int done = EVP_KDF_derive(context.get(), key.data(), key.size(), parameters);
  OPENSSL_cleanse(bytes.data(), bytes.size());
  if (done != 1) out_of_openssl();
  return key;
}

const unsigned char* session_context() {
  return reinterpret_cast<const unsigned char*>(tls_application.data());
}

HandshakeNotes& notes_of(const SSL* ssl) { return *static_cast<HandshakeNotes*>(SSL_get_app_data(ssl)); }

}  // namespace

CredentialSnapshot::CredentialSnapshot(const CredentialMaterial& material)
    : context_(SSL_CTX_new(TLS_method())) {
  SSL_CTX* context = context_.get();
  if (context == nullptr) out_of_openssl();
  // Independent of the host's openssl.cnf.
  SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_max_proto_version(context, TLS1_3_VERSION);
  SSL_CTX_set_security_level(context, 2);
  SSL_CTX_clear_options(context, SSL_OP_IGNORE_UNEXPECTED_EOF | SSL_OP_ALLOW_NO_DHE_KEX);
  SSL_CTX_set_options(context, SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_NO_TICKET);
  SSL_CTX_set_num_tickets(context, 0);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_read_ahead(context, 0);
  if (SSL_CTX_set_ciphersuites(context, material.secrets.empty() ? ciphers : ciphers_with_secrets) != 1)
    out_of_openssl();

  const std::string application =
      std::string(1, static_cast<char>(tls_application.size())).append(tls_application);
  SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(application.data()),
                          static_cast<unsigned int>(application.size()));
  SSL_CTX_set_alpn_select_cb(context, choose_application, nullptr);
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, verify);
  // Sessions are never resumed, but OpenSSL treats a secret as a session, which must have the same context.
  SSL_CTX_set_session_id_context(context, session_context(), tls_application.size());

  const bool certificate = !material.certificate.text.empty();
  if (certificate && material.key.text.empty()) refuse(material.certificate, "its key is missing: key_file");
  if (certificate && material.trust.text.empty())
    refuse(material.certificate, "the authorities to trust are missing: trust_file");
  if (!certificate && !material.key.text.empty())
    refuse(material.key, "the certificate of this key is missing: certificate_file");
  if (!certificate && !material.trust.text.empty())
    refuse(material.trust, "certificate_file is missing: both sides must authenticate");
  if (!certificate && material.secrets.empty())
    throw Error(ErrorKind::invalid_argument, "credentials without a certificate and without a secret");
  if (certificate) {
    use_certificate(material);
    use_trust(material.trust);
  }
  use_secrets(material.secrets);
  ERR_clear_error();
}

CredentialSnapshot::~CredentialSnapshot() {
  for (Secret& secret : secrets_) OPENSSL_cleanse(secret.key.data(), secret.key.size());
}

void CredentialSnapshot::use_certificate(const CredentialMaterial& material) {
  auto chain = certificates_in(material.certificate);
  certificate_ = std::move(chain.front());
  X509* own = certificate_.get();
  const std::string name = names_for_people(*own);
  if (X509_cmp_current_time(X509_get0_notAfter(own)) < 0)
    refuse(material.certificate,
           "the certificate of " + name + " expired at " + text_of(X509_get0_notAfter(own)));
  if (X509_cmp_current_time(X509_get0_notBefore(own)) > 0)
    refuse(material.certificate,
           "the certificate of " + name + " is not valid before " + text_of(X509_get0_notBefore(own)));
  if (proven_name(*own).empty())
    refuse(material.certificate,
           "the certificate names no agent: it needs the alternative name "
           "URI:weft://NAME or DNS:NAME, printable and without blanks");

  const openssl::Key key = key_in(material.key);
  ERR_clear_error();
  if (X509_check_private_key(own, key.get()) != 1)
    refuse(material.key, "the key does not match the certificate in " + material.certificate.source);
  expect_done(SSL_CTX_use_certificate(context_.get(), own), material.certificate, "the certificate");
  expect_done(SSL_CTX_use_PrivateKey(context_.get(), key.get()), material.key, "the key");
  for (std::size_t i = 1; i < chain.size(); ++i)
    expect_done(static_cast<int>(SSL_CTX_add1_chain_cert(context_.get(), chain[i].get())),
                material.certificate, "the authority " + names_for_people(*chain[i]));
}

void CredentialSnapshot::use_trust(const CredentialMaterial::Text& trust) {
  X509_STORE* store = SSL_CTX_get_cert_store(context_.get());
  // Each certificate in the file is trusted by itself: a root, an intermediate authority, or a single
  // agent's.
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);
  for (const auto& certificate : certificates_in(trust))
    expect_done(X509_STORE_add_cert(store, certificate.get()), trust, names_for_people(*certificate));
}

void CredentialSnapshot::use_secrets(const std::vector<CredentialMaterial::Secret>& secrets) {
  if (secrets.size() > 2)
    throw Error(ErrorKind::invalid_argument,
                std::to_string(secrets.size()) + " secrets, expected at most two: a new and an old one");
  for (const auto& secret : secrets) {
    const auto refuse = [&](const std::string& why) {
      throw Error(ErrorKind::invalid_argument, secret.source + ": " + why);
    };
    if (!is_plain_name(secret.id, 128))
      refuse("the id '" + printable(secret.id) +
             "' is not 1 to 128 printable ASCII characters without blanks");
    if (secret.bytes.size() < least_secret)
      refuse("the secret '" + secret.id + "' has " + std::to_string(secret.bytes.size()) +
             " bytes, expected at least " + std::to_string(least_secret) + " random bytes");
    if (std::any_of(secrets_.begin(), secrets_.end(), [&](const auto& old) { return old.id == secret.id; }))
      refuse("there are two secrets with the id '" + secret.id + "'");
    secrets_.push_back({secret.id, derive(secret)});
  }
  if (secrets_.empty()) return;
  SSL_CTX_set_psk_use_session_callback(context_.get(), offer_secret);
  SSL_CTX_set_psk_find_session_callback(context_.get(), find_secret);
}

openssl::Ssl CredentialSnapshot::make(HandshakeNotes& notes, bool server) const {
  openssl::Ssl ssl(SSL_new(context_.get()));
  if (ssl == nullptr) out_of_openssl();
  notes.credentials = this;
  SSL_set_app_data(ssl.get(), &notes);
  server ? SSL_set_accept_state(ssl.get()) : SSL_set_connect_state(ssl.get());
  if (server || notes.host.empty()) return ssl;
  X509_VERIFY_PARAM* rules = SSL_get0_param(ssl.get());
  const std::string address = notes.host.substr(0, notes.host.find('%'));  // without the zone of fe80::1%eth0
  if (X509_VERIFY_PARAM_set1_ip_asc(rules, address.c_str()) == 1) return ssl;
  X509_VERIFY_PARAM_set_hostflags(rules,
                                  X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS | X509_CHECK_FLAG_NEVER_CHECK_SUBJECT);
  if (X509_VERIFY_PARAM_set1_host(rules, notes.host.data(), notes.host.size()) != 1) out_of_openssl();
  SSL_set_tlsext_host_name(ssl.get(), notes.host.c_str());
  return ssl;
}

std::optional<std::chrono::system_clock::time_point> CredentialSnapshot::expires() const {
  if (certificate_ == nullptr) return std::nullopt;
  std::tm broken{};
  ASN1_TIME_to_tm(X509_get0_notAfter(certificate_.get()), &broken);
  return std::chrono::system_clock::from_time_t(timegm(&broken));
}

std::string CredentialSnapshot::name() const {
  return certificate_ != nullptr ? proven_name(*certificate_) : std::string();
}

std::string CredentialSnapshot::describe() const {
  std::string text;
  if (certificate_ != nullptr)
    text = "certificate '" + proven_name(*certificate_) + "' until " +
           text_of(X509_get0_notAfter(certificate_.get()));
  for (std::size_t i = 0; i < secrets_.size(); ++i) {
    if (!text.empty()) text += ", ";
    if (i == 0) text += secrets_.size() > 1 ? "secrets " : "secret ";
    text += "'" + secrets_[i].id + "'";
  }
  return text;
}

// OpenSSL calls this for each error. Without errors, it calls this for each certificate of the chain, the
// peer's own last; then the certificate must be for the expected agent.
int CredentialSnapshot::verify(int so_far, X509_STORE_CTX* chain) {
  auto* ssl = static_cast<SSL*>(X509_STORE_CTX_get_ex_data(chain, SSL_get_ex_data_X509_STORE_CTX_idx()));
  HandshakeNotes& notes = notes_of(ssl);
  const int depth = X509_STORE_CTX_get_error_depth(chain);
  const X509* peer = X509_STORE_CTX_get0_cert(chain);
  if (so_far == 1 && depth > 0) return 1;
  notes.certificate_names = names_for_people(*peer);
  notes.wanted_name = so_far == 1 ? notes.expected_agent : notes.host;
  if (so_far != 1) {
    notes.verify_error = X509_STORE_CTX_get_error(chain);
    notes.verify_depth = depth;
    return 0;
  }
  notes.nameless = proven_name(*peer).empty();
  if (notes.nameless || (!notes.expected_agent.empty() && !names_agent(*peer, notes.expected_agent))) {
    notes.verify_error = notes.nameless ? X509_V_ERR_APPLICATION_VERIFICATION : X509_V_ERR_HOSTNAME_MISMATCH;
    X509_STORE_CTX_set_error(chain, notes.verify_error);
    return 0;
  }
  return 1;
}

// OpenSSL takes ownership of the session. Returns 0 if OpenSSL fails, otherwise 1.
int CredentialSnapshot::use_secret(SSL* ssl, const Secret& secret, SSL_SESSION** found) {
  openssl::Session session(SSL_SESSION_new());
  const SSL_CIPHER* cipher = SSL_CIPHER_find(ssl, cipher_of_secrets);
  if (session == nullptr || cipher == nullptr ||
      SSL_SESSION_set1_master_key(session.get(), secret.key.data(), secret.key.size()) != 1 ||
      SSL_SESSION_set_cipher(session.get(), cipher) != 1 ||
      SSL_SESSION_set_protocol_version(session.get(), TLS1_3_VERSION) != 1 ||
      SSL_SESSION_set1_id_context(session.get(), session_context(), tls_application.size()) != 1)
    return 0;
  notes_of(ssl).secret = secret.id;
  *found = session.release();
  return 1;
}

// Client. OpenSSL copies the id at once.
int CredentialSnapshot::offer_secret(SSL* ssl, const EVP_MD* digest, const unsigned char** id,
                                     std::size_t* id_size, SSL_SESSION** found) {
  *found = nullptr;
  // After a HelloRetryRequest, the server has chosen a hash, which may not be SHA-256, the hash of secrets.
  if (digest != nullptr && EVP_MD_get_type(digest) != NID_sha256) return 1;
  const Secret& secret = notes_of(ssl).credentials->secrets_.front();
  *id = reinterpret_cast<const unsigned char*>(secret.id.data());
  *id_size = secret.id.size();
  return use_secret(ssl, secret, found);
}

// Server. An unknown id is not an error here: a certificate may suffice, otherwise OpenSSL fails the
// handshake.
int CredentialSnapshot::find_secret(SSL* ssl, const unsigned char* id, std::size_t id_size,
                                    SSL_SESSION** found) {
  HandshakeNotes& notes = notes_of(ssl);
  *found = nullptr;
  const std::string_view wanted(reinterpret_cast<const char*>(id), id_size);
  for (const Secret& secret : notes.credentials->secrets_)
    if (secret.id == wanted) return use_secret(ssl, secret, found);
  notes.unknown_secret = printable(wanted);
  return 1;
}

int CredentialSnapshot::choose_application(SSL*, const unsigned char** chosen, unsigned char* chosen_size,
                                           const unsigned char* offered, unsigned int offered_size, void*) {
  for (unsigned int i = 0; i < offered_size; i += 1 + offered[i]) {
    const std::string_view name(reinterpret_cast<const char*>(offered + i + 1), offered[i]);
    if (name != tls_application) continue;
    *chosen = offered + i + 1;
    *chosen_size = offered[i];
    return SSL_TLSEXT_ERR_OK;
  }
  return SSL_TLSEXT_ERR_ALERT_FATAL;
}

}  // namespace weft::rpc

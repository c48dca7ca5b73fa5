#include <weft/rpc/testing/test_authority.h>

#include <weft/rpc/core/error.h>
#include <weft/rpc/security/internal/openssl.h>

#include <openssl/rand.h>

#include <ctime>

namespace weft::test {
namespace {

namespace openssl = rpc::openssl;

void must(bool done) {
  if (!done)
    throw rpc::Error(rpc::ErrorKind::internal,
                     "OpenSSL cannot make a certificate: " + openssl::first_error());
}

openssl::Key make_key(TestAuthority::KeyKind kind) {
  EVP_PKEY* key = nullptr;
  switch (kind) {
    case TestAuthority::KeyKind::p256:
      key = EVP_EC_gen("P-256");
      break;
    case TestAuthority::KeyKind::ed25519:
      key = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
      break;
    case TestAuthority::KeyKind::weak_rsa:
      key = EVP_RSA_gen(1024);
      break;
  }
  must(key != nullptr);
  return openssl::Key(key);
}

std::string text_of(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return {data, static_cast<std::size_t>(size)};
}

std::string pem_of(X509* certificate) {
  const openssl::Bio bio(BIO_new(BIO_s_mem()));
  must(PEM_write_bio_X509(bio.get(), certificate) == 1);
  return text_of(bio.get());
}

std::string pem_of(EVP_PKEY* key) {
  const openssl::Bio bio(BIO_new(BIO_s_mem()));
  must(PEM_write_bio_PKCS8PrivateKey(bio.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1);
  return text_of(bio.get());
}

void set_common_name(X509* certificate, const std::string& name) {
  X509_NAME* subject = X509_get_subject_name(certificate);
  must(X509_NAME_add_entry_by_NID(subject, NID_commonName, MBSTRING_UTF8,
                                  reinterpret_cast<const unsigned char*>(name.data()),
                                  static_cast<int>(name.size()), -1, 0) == 1);
}

void add(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  must(extension != nullptr);
  const int added = X509_add_ext(certificate, extension, -1);
  X509_EXTENSION_free(extension);
  must(added == 1);
}

// As bytes, not in OpenSSL's text format: a test may need commas and zeros in a name.
void add_alternative(GENERAL_NAMES* names, int type, const std::string& bytes) {
  GENERAL_NAME* name = GENERAL_NAME_new();
  ASN1_STRING* value = ASN1_STRING_type_new(type == GEN_IPADD ? V_ASN1_OCTET_STRING : V_ASN1_IA5STRING);
  must(ASN1_STRING_set(value, bytes.data(), static_cast<int>(bytes.size())) == 1);
  GENERAL_NAME_set0_value(name, type, value);
  must(sk_GENERAL_NAME_push(names, name) > 0);
}

void add_alternatives(X509* certificate, const TestAuthority::Request& request) {
  if (request.dns.empty() && request.uris.empty() && request.addresses.empty()) return;
  const openssl::Names names(sk_GENERAL_NAME_new_null());
  for (const auto& uri : request.uris) add_alternative(names.get(), GEN_URI, uri);
  for (const auto& name : request.dns) add_alternative(names.get(), GEN_DNS, name);
  for (const auto& address : request.addresses) {
    ASN1_OCTET_STRING* bytes = a2i_IPADDRESS(address.c_str());
    must(bytes != nullptr);
    add_alternative(names.get(), GEN_IPADD,
                    {reinterpret_cast<const char*>(ASN1_STRING_get0_data(bytes)),
                     static_cast<std::size_t>(ASN1_STRING_length(bytes))});
    ASN1_OCTET_STRING_free(bytes);
  }
  must(X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, X509V3_ADD_DEFAULT) == 1);
}

// Without an issuer, the certificate is signed with its own key.
openssl::Certificate make(const TestAuthority::Request& request, EVP_PKEY* key, X509* issuer,
                          EVP_PKEY* issuer_key) {
  openssl::Certificate certificate(X509_new());
  X509* made = certificate.get();
  must(made != nullptr && X509_set_version(made, X509_VERSION_3) == 1);
  std::uint64_t serial = 0;
  must(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof serial) == 1);
  must(ASN1_INTEGER_set_uint64(X509_get_serialNumber(made), serial >> 1) == 1);
  const std::time_t now = std::time(nullptr);
  must(ASN1_TIME_adj(X509_getm_notBefore(made), now, 0, static_cast<long>(request.begins.count())) !=
       nullptr);
  must(ASN1_TIME_adj(X509_getm_notAfter(made), now, 0, static_cast<long>(request.ends.count())) != nullptr);
  if (!request.common_name.empty()) set_common_name(made, request.common_name);
  if (issuer == nullptr) {
    issuer = made;
    issuer_key = key;
  }
  must(X509_set_issuer_name(made, X509_get_subject_name(issuer)) == 1 && X509_set_pubkey(made, key) == 1);

  add(made, issuer, NID_basic_constraints, request.authority ? "critical,CA:TRUE" : "critical,CA:FALSE");
  add(made, issuer, NID_key_usage,
      request.authority ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature");
  const std::string uses = std::string(request.for_clients ? "clientAuth" : "") +
                           (request.for_clients && request.for_servers ? "," : "") +
                           (request.for_servers ? "serverAuth" : "");
  if (!request.authority) add(made, issuer, NID_ext_key_usage, uses.empty() ? "codeSigning" : uses.c_str());
  add(made, issuer, NID_subject_key_identifier, "hash");
  add(made, issuer, NID_authority_key_identifier, "keyid");
  add_alternatives(made, request);

  const bool own_digest = EVP_PKEY_is_a(issuer_key, "ED25519");
  must(X509_sign(made, issuer_key, own_digest ? nullptr : EVP_sha256()) > 0);
  return certificate;
}

}  // namespace

struct TestAuthority::Objects {
  openssl::Certificate certificate;
  openssl::Key key;
};

TestAuthority::TestAuthority(const std::string& name, KeyKind key)
    : TestAuthority(self_signed({.common_name = name, .authority = true, .key = key})) {}

TestAuthority::TestAuthority(Issued authority)
    : own_(std::move(authority)), objects_(std::make_unique<Objects>()) {
  const auto reader = [](const std::string& text) {
    return openssl::Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  };
  objects_->certificate.reset(PEM_read_bio_X509(reader(own_.certificate).get(), nullptr, nullptr, nullptr));
  objects_->key.reset(PEM_read_bio_PrivateKey(reader(own_.key).get(), nullptr, nullptr, nullptr));
  must(objects_->certificate != nullptr && objects_->key != nullptr);
}

TestAuthority::~TestAuthority() = default;

TestAuthority::Issued TestAuthority::issue(const Request& request) const {
  const openssl::Key key = make_key(request.key);
  const auto made = make(request, key.get(), objects_->certificate.get(), objects_->key.get());
  return {pem_of(made.get()), pem_of(key.get())};
}

TestAuthority::Request TestAuthority::agent(const std::string& name) {
  return {.common_name = name,
          .dns = {name, "localhost"},
          .uris = {"weft://" + name},
          .addresses = {"127.0.0.1", "::1"}};
}

rpc::CredentialOptions TestAuthority::credentials_for(const Request& request) const {
  const Issued issued = issue(request);
  return {.certificate_pem = issued.certificate, .key_pem = issued.key, .trust_pem = own_.certificate};
}

TestAuthority::Issued TestAuthority::self_signed(const Request& request) {
  const openssl::Key key = make_key(request.key);
  const auto made = make(request, key.get(), nullptr, nullptr);
  return {pem_of(made.get()), pem_of(key.get())};
}

}  // namespace weft::test

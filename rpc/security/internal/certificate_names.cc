#include <weft/rpc/security/internal/certificate_names.h>

#include <arpa/inet.h>

#include <algorithm>
#include <cstdio>
#include <optional>

namespace weft::rpc {
namespace {

constexpr std::string_view own_scheme = "weft://";
constexpr std::size_t longest_name = 255;

struct Alternative {
  int type;  // GEN_DNS, GEN_URI, GEN_IPADD
  std::string text;
};

std::string bytes_of(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<std::size_t>(ASN1_STRING_length(string))};
}

std::string address_text(const std::string& bytes) {
  char text[INET6_ADDRSTRLEN] = "";
  if (bytes.size() == 4 || bytes.size() == 16)
    ::inet_ntop(bytes.size() == 4 ? AF_INET : AF_INET6, bytes.data(), text, sizeof text);
  return text;
}

std::vector<Alternative> alternatives(const X509& certificate) {
  const openssl::Names names(
      static_cast<GENERAL_NAMES*>(X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<Alternative> found;
  for (int i = 0; names != nullptr && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    int type = 0;
    const auto* value = static_cast<const ASN1_STRING*>(
        GENERAL_NAME_get0_value(sk_GENERAL_NAME_value(names.get(), i), &type));
    if (type == GEN_DNS || type == GEN_URI) found.push_back({type, bytes_of(value)});
    if (type == GEN_IPADD) found.push_back({type, address_text(bytes_of(value))});
  }
  return found;
}

std::optional<std::string> common_name(const X509& certificate) {
  const X509_NAME* subject = X509_get_subject_name(&certificate);
  const int place = X509_NAME_get_index_by_NID(subject, NID_commonName, -1);
  if (place < 0 || X509_NAME_get_index_by_NID(subject, NID_commonName, place) >= 0) return std::nullopt;
  unsigned char* text = nullptr;
  const int size = ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, place)));
  if (size < 0) return std::nullopt;
  std::string name(reinterpret_cast<const char*>(text), static_cast<std::size_t>(size));
  OPENSSL_free(text);
  return name;
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace

bool is_plain_name(std::string_view name, std::size_t max_chars) {
  return !name.empty() && name.size() <= max_chars &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

std::string proven_name(const X509& certificate) {
  const auto found = alternatives(certificate);
  const auto usable = [](std::string name) {
    return is_plain_name(name, longest_name) ? std::move(name) : std::string();
  };
  for (const auto& [type, text] : found)
    if (type == GEN_URI && text.starts_with(own_scheme)) return usable(text.substr(own_scheme.size()));
  for (const auto& [type, text] : found)
    if (type == GEN_DNS) return usable(lower(text));
  return usable(common_name(certificate).value_or(""));
}

bool names_agent(const X509& certificate, std::string_view agent) {
  if (!is_plain_name(agent, longest_name)) return false;
  for (const auto& [type, text] : alternatives(certificate)) {
    if (type == GEN_URI && text == std::string(own_scheme).append(agent)) return true;
    if (type == GEN_DNS && lower(text) == lower(std::string(agent))) return true;
  }
  return false;
}

std::string names_for_people(const X509& certificate) {
  constexpr std::size_t enough = 4;
  const auto found = alternatives(certificate);
  std::string text;
  for (std::size_t i = 0; i < found.size() && i < enough; ++i)
    text += (i == 0 ? "'" : ", '") + printable(found[i].text) + "'";
  if (found.size() > enough) text += ", …";
  if (!text.empty()) return text;
  const auto name = common_name(certificate);
  return name ? "'" + printable(*name) + "'" : "nobody";
}

std::string printable(std::string_view bytes, std::size_t max_bytes) {
  std::string text;
  for (const char c : bytes.substr(0, max_bytes)) {
    if (c >= ' ' && c < '\x7f' && c != '\\') {
      text += c;
    } else {
      char escaped[8];
      std::snprintf(escaped, sizeof escaped, "\\x%02x", static_cast<unsigned char>(c));
      text += escaped;
    }
  }
  if (bytes.size() > max_bytes) text += "…";
  return text;
}

}  // namespace weft::rpc

// Functions that read the names in a certificate.
//
// weft's own form is the URI weft://NAME among the subject's alternative names. Without such a URI, the first
// DNS name is used; without a DNS name, a single common name. A name that is empty, or contains unprintable
// bytes or blanks, is ignored, because it could mislead readers or a comparison. Functions without side
// effects; thread-safe.
#pragma once

#include <weft/rpc/security/internal/openssl.h>

#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// Printable ASCII without blanks, 1 to `max_chars` characters: the permitted form of ids and of names in
// certificates.
bool is_plain_name(std::string_view name, std::size_t max_chars);

// The name that the certificate proves: the name in the first weft:// URI; without such a URI, the first DNS
// name in lower case; without a DNS name, the single common name. "" if the certificate has none of these, or
// if the name is not a plain name.
std::string proven_name(const X509& certificate);

// Whether the certificate is for this agent: one of its URIs is weft:// and the agent's name, or one of its
// DNS names is the agent's name in upper or lower case. A DNS name with a wildcard does not match.
bool names_agent(const X509& certificate, std::string_view agent);

// All names, for messages: "'worker1', '10.0.0.5'"; "nobody" if the certificate has no names. The text is
// escaped and truncated.
std::string names_for_people(const X509& certificate);

// At most `max_bytes` untrusted bytes as text for a log. Unprintable bytes are written as \xNN.
std::string printable(std::string_view bytes, std::size_t max_bytes = 64);

}  // namespace weft::rpc

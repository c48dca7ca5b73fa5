// What a certificate says whose it is.
//
// weft's own form is the URI weft://NAME among the subject's alternative names; a DNS name, or a lone common
// name where there is neither, serves too. A name that could mislead whoever reads or matches it (a byte that
// is not printable, a blank, none at all) counts for nothing. Pure functions; thread-safe.
#pragma once

#include <weft/rpc/security/internal/openssl.h>

#include <string>
#include <string_view>
#include <vector>

namespace weft::rpc {

// Printable ASCII without blanks, 1 to `most` characters: what ids and names in certificates may be.
bool is_plain_name(std::string_view name, std::size_t most);

// The name that the certificate proves: of the first weft:// URI, else the first DNS name in lower case, else
// the one common name; "" where there is none, or that is not a plain name.
std::string proven_name(const X509& certificate);

// Whether it is for this agent: one of its URIs is weft://agent, or one of its DNS names, without wildcards.
bool names_agent(const X509& certificate, std::string_view agent);

// All of them, for messages: "'worker1', '10.0.0.5'"; "nobody". Foreign text: escaped and cut short.
std::string names_for_people(const X509& certificate);

// Foreign bytes as text for a log: what is not printable as \xNN, at most `most` bytes of it.
std::string printable(std::string_view bytes, std::size_t most = 64);

}  // namespace weft::rpc

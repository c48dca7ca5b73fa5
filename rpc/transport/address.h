// Address: the address on which an agent listens, in one of the forms tcp://host:port, tcp://[v6]:port,
// unix:///path, shm:///path or inproc://name. An address to connect to may also have the form
// tcp://name@host:port. Then the server's certificate must be for `name` instead of `host`. Thread-safety: a
// value.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>
#include <string_view>

namespace weft::rpc {

struct WEFT_EXPORT Address {
  std::string scheme;
  std::string host;            // of tcp
  std::string port;            // of tcp; "0": any free port
  std::string path;            // of unix and shm; for inproc, the name
  std::string certified = {};  // of tcp: the name that the certificate must have; empty: `host`

  static Address parse(std::string_view text);  // throws invalid_argument
  // Whether the text has a scheme, which distinguishes it from an agent's name. parse() may still refuse it.
  static bool looks_like(std::string_view text) { return text.find("://") != std::string_view::npos; }

  std::string text() const;  // the form that parse() reads
  friend bool operator==(const Address&, const Address&) = default;
};

}  // namespace weft::rpc

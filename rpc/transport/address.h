// Address: where an agent listens: tcp://host:port, tcp://[v6]:port, unix:///path, shm:///path,
// inproc://name. To dial, tcp://name@host:port too: the certificate there must be for `name`, not for `host`.
// Thread-safety: a value.
#pragma once

#include <weft/rpc/core/export.h>

#include <string>
#include <string_view>

namespace weft::rpc {

struct WEFT_EXPORT Address {
  std::string scheme;
  std::string host;            // of tcp
  std::string port;            // of tcp; "0": any free one
  std::string path;            // of unix and shm; the name of inproc
  std::string certified = {};  // of tcp: the host name that the certificate must have; empty: `host`

  static Address parse(std::string_view text);  // throws invalid_argument
  static bool looks_like(std::string_view text) { return text.find("://") != std::string_view::npos; }
  std::string text() const;
  friend bool operator==(const Address&, const Address&) = default;
};

}  // namespace weft::rpc

// Address: the address on which an agent listens, in one of the forms tcp://host:port, tcp://[v6]:port,
// unix:///path, shm:///path or inproc://name. An address to connect to may also have the form
// tcp://name@host:port. Then the server's certificate must be for `name` instead of `host`. Thread-safety: a
// value. The functions below say which addresses belong to this host or to the host of a peer, and which of
// them others can reach; they have no state.
#pragma once

#include <weft/rpc/core/export.h>

#include <optional>
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

// The numeric address from which this host would connect to `host`; 127.0.0.1 if `host` is this host. The
// function resolves names, so it may block; it sends nothing. Throws unavailable if `host` cannot be resolved
// or has no route.
WEFT_EXPORT std::string local_address_towards(const std::string& host);

// Whether `host` is "0.0.0.0" or "::", which represent all addresses of this host. A peer cannot connect to
// them.
WEFT_EXPORT bool is_wildcard(const std::string& host);

// Whether the numeric address belongs to this host and network namespace. A wildcard does not.
WEFT_EXPORT bool is_own_address(const std::string& host);

// The hosts of the two ends of a connection, as numeric addresses. Empty: the connection does not leave this
// host (a Unix socket, shared memory).
struct HostPair {
  std::string own, other;
};

// The form of an address of this agent in which the peer at the other end of a connection can connect to it:
// a wildcard becomes the own address of the connection. nullopt: the peer cannot connect to it. hosts:
// nullopt if the connection has no hosts, or if there is no connection.
WEFT_EXPORT std::optional<Address> as_seen_by_peer(Address own, const std::optional<HostPair>& hosts);

// Whether an address that the peer at the other end of a connection has stated is on the host from which the
// peer came. This agent connects to no other address that only the peer has stated: otherwise a peer could
// make it connect to any host. Addresses that do not leave this process are always accepted.
WEFT_EXPORT bool is_on_host_of_peer(const Address& stated, const std::optional<HostPair>& hosts);

}  // namespace weft::rpc

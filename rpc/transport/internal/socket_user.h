// The user at the other end of a connected socket, as the kernel reports it.
//
// For a TCP connection between two loopback addresses, the functions ask the kernel for the socket of the
// other end (NETLINK_SOCK_DIAG, otherwise /proc/net). That socket must exist at this time, and a process must
// have it: a socket that was closed or not yet accepted has no user, although the kernel may report user 0.
// So ask after bytes of the other side have arrived. Thread-safety: functions without state.
#pragma once

#include <weft/rpc/core/export.h>

#include <asio/ip/tcp.hpp>
#include <asio/local/stream_protocol.hpp>

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>

namespace weft::rpc {

// The address, where an IPv4 address that an IPv6 socket has accepted is an IPv4 address.
asio::ip::tcp::endpoint unmapped(const asio::ip::tcp::endpoint& end);

// "uid:1000", or empty if the kernel reports no user. A TCP connection beyond loopback has none.
std::string identity_of(asio::local::stream_protocol::socket& socket);
WEFT_EXPORT std::string identity_of(asio::ip::tcp::socket& socket);

// Whether this process can open the descriptor that the question needs. If not, identity_of() may be empty
// for a connection that has a user.
WEFT_EXPORT bool can_ask_for_users();

// The user of the connected socket at `own`, in a table in the format of /proc/net/tcp and /proc/net/tcp6.
WEFT_EXPORT std::optional<uid_t> user_in_table(std::string_view table, const asio::ip::tcp::endpoint& own,
                                               const asio::ip::tcp::endpoint& other);

}  // namespace weft::rpc

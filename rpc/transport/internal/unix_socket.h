// Common parts of the transports over Unix sockets: the address, the result of a connect, and a listening
// socket of mode 0600.
#pragma once

#include <weft/rpc/core/error.h>
#include <weft/rpc/transport/address.h>

#include <asio/io_context.hpp>
#include <asio/local/stream_protocol.hpp>

#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace weft::rpc {

// Throws invalid_argument if the path is too long for a socket.
inline asio::local::stream_protocol::endpoint unix_endpoint(const Address& address) {
  if (address.path.size() >= sizeof(sockaddr_un::sun_path))
    throw Error(ErrorKind::invalid_argument, address.text() + ": a path of " +
                                                 std::to_string(address.path.size()) +
                                                 " bytes, expected at most 107 for a socket");
  return asio::local::stream_protocol::endpoint(address.path);
}

// The result of an asynchronous connect. If the listener's queue is full, the kernel refuses at once
// (EAGAIN). Asio 1.24 and later treat this as a connect in progress, and then as success; Asio 1.22 reports
// the error.
inline asio::error_code connect_result(const asio::local::stream_protocol::socket& socket,
                                       asio::error_code error) {
  if (!error) (void)socket.remote_endpoint(error);
  return error == asio::error::not_connected ? asio::error::try_again : error;
}

// Removes a socket file that a dead process left behind: no process listens on it.
inline void remove_stale(asio::io_context& context, const asio::local::stream_protocol::endpoint& where) {
  struct stat info{};
  if (::lstat(where.path().c_str(), &info) != 0 || !S_ISSOCK(info.st_mode)) return;
  asio::local::stream_protocol::socket probe(context);
  probe.open();
  probe.non_blocking(true);  // a listener that is too busy to accept is alive
  asio::error_code error;
  probe.connect(where, error);
  if (error == asio::error::connection_refused) ::unlink(where.path().c_str());
}

// Opens a listening socket. Throws asio::system_error.
inline asio::local::stream_protocol::acceptor listen_on(asio::io_context& context, const Address& address) {
  const auto where = unix_endpoint(address);
  remove_stale(context, where);
  asio::local::stream_protocol::acceptor acceptor(context);
  acceptor.open();
  // On Linux, bind() creates the file with the mode of the socket, so the file is never open to other users.
  ::fchmod(acceptor.native_handle(), S_IRUSR | S_IWUSR);
  acceptor.bind(where);
  acceptor.listen();
  return acceptor;
}

}  // namespace weft::rpc

// Streams over shared memory for tests, by a handshake over a socket pair.
#pragma once

#include <weft/rpc/transport/shm/handshake.h>
#include <weft/rpc/transport/shm/segment.h>

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <string>
#include <system_error>

#include "tests/support/connections.h"

namespace weft::test {

// Whether this system supports the transport. If not, and `why_not` is not null, sets *why_not to the reason.
inline bool shm_supported(std::string* why_not = nullptr) {
  try {
    (void)rpc::ShmSegment::create(rpc::ShmSegment::smallest);
    return true;
  } catch (const rpc::Error& error) {
    if (why_not != nullptr) *why_not = error.what();
    return false;
  }
}

inline std::array<int, 2> socket_pair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw std::system_error(errno, std::system_category(), "socketpair");
  return ends;
}

// Starts a handshake on its loop over a connected socket, and passes the result on.
inline std::shared_ptr<Handover<rpc::Result<std::unique_ptr<rpc::ByteStream>>>> greet(
    int socket, const std::shared_ptr<rpc::Loop>& loop, const rpc::ShmOptions& options = {}) {
  auto made = std::make_shared<Handover<rpc::Result<std::unique_ptr<rpc::ByteStream>>>>();
  on(*loop, [&] {
    rpc::ShmHandshake::Socket asio_socket(static_cast<asio::io_context&>(loop->context()),
                                          asio::local::stream_protocol(), socket);
    std::make_shared<rpc::ShmHandshake>(std::move(asio_socket), loop, options, "shm test",
                                        [made](auto result) { made->give(std::move(result)); })
        ->begin();
  });
  return made;
}

}  // namespace weft::test

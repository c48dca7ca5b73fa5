// Shared memory: the transport between processes of one user on one host.
//
// shm:///path is a Unix socket of mode 0600, over which the two sides connect and exchange their rings. After
// that, the socket carries only wake-ups and the end of the connection. The listener removes the socket's
// file when it closes.
#pragma once

#include <weft/rpc/transport/shm/handshake.h>
#include <weft/rpc/transport/transport.h>

namespace weft::rpc {

// If the system does not support it, connect() fails with unsupported, and incoming connections are closed.
WEFT_EXPORT std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options = {});

}  // namespace weft::rpc

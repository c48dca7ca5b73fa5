// Shared memory: the transport between processes of one user on one host.
//
// shm:///path is a Unix socket of mode 0600, over which the two sides connect and exchange their rings. After
// that, the socket carries only wake-ups and the end of the connection. The listener removes the socket's
// file when it closes.
#pragma once

#include <weft/rpc/transport/shm/options.h>
#include <weft/rpc/transport/transport.h>

#include <memory>
#include <string>

namespace weft::rpc {

// If shm_supported() is false, connect() fails with unsupported, and incoming connections are closed.
WEFT_EXPORT std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options = {});

// Whether this system supports the transport. If not, and `why_not` is not null, sets *why_not to the reason.
WEFT_EXPORT bool shm_supported(std::string* why_not = nullptr);

}  // namespace weft::rpc

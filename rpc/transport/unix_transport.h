// Unix sockets: a transport within a host. The socket's file has mode 0600 and is removed with its listener.
#pragma once

#include <weft/rpc/transport/transport.h>

namespace weft::rpc {

// Connections use TLS if ConnectionOptions::credentials is set.
WEFT_EXPORT std::unique_ptr<Transport> make_unix_transport();

}  // namespace weft::rpc

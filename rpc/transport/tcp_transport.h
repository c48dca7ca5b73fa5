// TCP: the transport between hosts, over IPv4 and IPv6, with TCP_NODELAY. A listener on an address other than
// loopback requires allow_remote.
#pragma once

#include <weft/rpc/transport/transport.h>

namespace weft::rpc {

// Connections use TLS if ConnectionOptions::credentials is set.
WEFT_EXPORT std::unique_ptr<Transport> make_tcp_transport();

}  // namespace weft::rpc

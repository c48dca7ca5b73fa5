// Unix sockets: the transport within a host. The socket's file has mode 0600 and goes with its listener.
#pragma once

#include <weft/rpc/transport/transport.h>

namespace weft::rpc {

WEFT_EXPORT std::unique_ptr<Transport> make_unix_transport();

}  // namespace weft::rpc

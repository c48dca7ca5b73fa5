// Shared memory: the transport between processes of one user on one host.
//
// shm:///path is a Unix socket of mode 0600, over which the two sides find each other and exchange their
// rings; then it only wakes and ends them. Its file goes with its listener.
#pragma once

#include <weft/rpc/transport/byte_stream.h>
#include <weft/rpc/transport/shm/options.h>
#include <weft/rpc/transport/transport.h>

#include <functional>
#include <memory>
#include <string>

namespace weft::rpc {

// Makes the connection over a stream that was established.
using MakeConnection = std::function<std::shared_ptr<Connection>(std::unique_ptr<ByteStream>,
                                                                 std::shared_ptr<Loop>, const Limits&)>;

WEFT_EXPORT std::unique_ptr<Transport> make_shm_transport(MakeConnection make,
                                                          const ShmOptions& options = {});

// Whether this system has what it takes; if not and `why_not` is given, says what is missing.
WEFT_EXPORT bool shm_supported(std::string* why_not = nullptr);

}  // namespace weft::rpc

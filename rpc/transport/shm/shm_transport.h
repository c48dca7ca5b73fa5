// Shared memory: the transport between processes of one user on one host.
//
// shm:///path is a Unix socket of mode 0600, over which the two sides find each other and exchange their
// rings; then it only wakes and ends them. Its file goes with its listener.
#pragma once

#include <weft/rpc/transport/shm/options.h>
#include <weft/rpc/transport/transport.h>

#include <memory>
#include <string>

namespace weft::rpc {

WEFT_EXPORT std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options = {});

// Whether this system has what it takes; if not and `why_not` is given, says what is missing.
WEFT_EXPORT bool shm_supported(std::string* why_not = nullptr);

}  // namespace weft::rpc

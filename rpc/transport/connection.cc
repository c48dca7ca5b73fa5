#include <weft/rpc/transport/connection.h>

#include <weft/rpc/transport/lanes.h>

namespace weft::rpc {

void Connection::set_lanes(std::unique_ptr<Lanes>) {}

std::unique_ptr<ByteStream> Connection::take_stream() { return nullptr; }

}  // namespace weft::rpc

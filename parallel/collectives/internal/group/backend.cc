#include <weft/parallel/collectives/internal/group/backend.h>

namespace weft::collectives {

rpc::Buffer Backend::memory_of(int from, std::uint64_t offset, std::size_t bytes) const {
  throw rpc::Error(rpc::ErrorKind::protocol_error,
                   "rank " + std::to_string(from) + " lends " + std::to_string(bytes) + " bytes at offset " +
                       std::to_string(offset) +
                       ", expected them in the message, because this rank shares no memory with that rank");
}

}  // namespace weft::collectives

#include <weft/parallel/collectives/backend/backend.h>

namespace weft::collectives {

rpc::Buffer Backend::memory_of(int from, std::uint64_t, std::size_t) const {
  throw rpc::Error(rpc::ErrorKind::protocol_error,
                   "rank " + std::to_string(from) + " lends memory that this rank cannot read");
}

}  // namespace weft::collectives

// How the ranks of a communicator get its unique id: by a key of the job's store, which rank 0 sets.
//
// A key serves one communicator: whoever makes several puts a number into it. Rank 0 removes nothing: ids are
// of use only until all have come. The future ends as Store::get does.
#pragma once

#include <weft/parallel/collectives/nccl/api.h>
#include <weft/rpc/store/store.h>

namespace weft::collectives::nccl {

// `make` makes the id, on rank 0 alone: Communicator::unique_id, or a communicator's grow_id.
WEFT_EXPORT rpc::Future<UniqueId> exchange_id(std::shared_ptr<rpc::Store> store, std::string key, int rank,
                                              const std::function<UniqueId()>& make,
                                              rpc::CallOptions options = {});

}  // namespace weft::collectives::nccl

// throw_on_all_ranks(): throws an error that each rank has detected itself, from equal data.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/rpc/call/invoke.h>
#include <weft/rpc/core/error.h>

namespace weft::elastic::detail {

// If a rank throws out of run(), its group ends. So each rank first waits until all ranks have the data from
// which they detect the error.
[[noreturn]] inline void throw_on_all_ranks(const collectives::Group& group, const rpc::Error& error) {
  (void)rpc::capture([&] { group.barrier().get(); });
  throw error;
}

}  // namespace weft::elastic::detail

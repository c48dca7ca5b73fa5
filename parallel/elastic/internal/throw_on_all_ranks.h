// throw_on_all_ranks(): throws an error that each rank has found by itself, from equal data.
#pragma once

#include <weft/parallel/collectives/group.h>
#include <weft/rpc/call/invoke.h>
#include <weft/rpc/core/error.h>

namespace weft::elastic::detail {

// A rank that throws out of run() ends the group. So each waits until all have what they need for the error.
[[noreturn]] inline void throw_on_all_ranks(const collectives::Group& group, const rpc::Error& error) {
  (void)rpc::capture([&] { group.barrier().get(); });
  throw error;
}

}  // namespace weft::elastic::detail

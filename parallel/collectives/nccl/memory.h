// Memory for NCCL: allocated by it, which lets it use what the links can do, and registered with a
// communicator, so that it is sent from and received into without a copy.
//
// Both are held by a shared_ptr. They are made only while nothing is in flight on the device
// (failed_precondition), and given back as soon as that is so after the last owner has gone: an allocation or
// a mapping made meanwhile may wait for a kernel that waits for another rank's. Memory outlives what is
// registered of it, and its communicators' launches. May block; thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/communicator.h>

namespace weft::collectives::nccl {

WEFT_EXPORT std::shared_ptr<void> allocate(const Device& device, std::size_t bytes);

// Ends with its last owner, or with the communicator. Of all ranks, where they mean the same buffer.
WEFT_EXPORT std::shared_ptr<void> register_memory(const Communicator::Ptr& communicator,
                                                  std::shared_ptr<void> memory, std::size_t bytes);

}  // namespace weft::collectives::nccl

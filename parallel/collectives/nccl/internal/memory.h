// Memory for NCCL. NCCL allocates it, to use the features of the links, and registers it with a communicator,
// to send and receive it without a copy.
//
// A shared_ptr owns an allocation or a registration. Both can be created only while no collective is in
// flight on the device (failed_precondition). They are freed after the last owner has released them, when no
// collective is in flight. While a collective is in flight, an allocation or a mapping could wait for a
// kernel that waits for another rank's kernel. A registration keeps its memory allocated. May block;
// thread-safe.
#pragma once

#include <weft/parallel/collectives/nccl/internal/communicator.h>

namespace weft::collectives::nccl {

// Memory of the device. failed_precondition while work is in flight there, resource_exhausted if NCCL cannot
// allocate it.
WEFT_EXPORT std::shared_ptr<void> allocate(const Device& device, std::size_t bytes);

// The registration ends with its last owner, or with the communicator. Call it on all ranks with the same
// buffer.
WEFT_EXPORT std::shared_ptr<void> register_memory(const Communicator::Ptr& communicator,
                                                  std::shared_ptr<void> memory, std::size_t bytes);

}  // namespace weft::collectives::nccl

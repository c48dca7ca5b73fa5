// Backend: moves the data of a group's collectives: by messages (messages/), in memory that its ranks share
// (shm/), or in levels of both (hosts/).
//
// backend_of() (group_making.cc) selects one when a group is created, and the group owns it. The backend
// outlives its collectives. Thread-safety: call member_left() and stop() in the group's turn (job_queue.h),
// and all other functions on any thread.
#pragma once

#include <weft/parallel/collectives/internal/group/collective_in_flight.h>

namespace weft::collectives {

class WEFT_EXPORT Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  // Creates a collective with those arguments; `group` starts it.
  virtual std::shared_ptr<CollectiveInFlight> make(std::shared_ptr<GroupCollectives> group,
                                                   Collective&& collective) = 0;
  // Whether that collective may write to its output before all ranks are known to have the same signature.
  virtual bool writes_early(const Collective&) const { return false; }
  // Allocates memory that collectives do not copy. null: this backend has no such memory, or none is left.
  // Throws resource_exhausted if the host has no memory left.
  virtual std::shared_ptr<std::byte> allocate(std::size_t) { return nullptr; }
  // For messages that the receiver reads from the sender's memory. Returns the offset at which rank `to`
  // finds `memory`, which allocate() returned. nullopt: that rank cannot read it.
  virtual std::optional<std::uint64_t> offset_for(int to, const rpc::Buffer& memory) const {
    (void)to, (void)memory;
    return std::nullopt;
  }
  // The memory of rank `from` at an offset that its offset_for() has returned. Throws protocol_error if the
  // rank has no such memory.
  virtual rpc::Buffer memory_of(int from, std::uint64_t offset, std::size_t bytes) const {
    throw rpc::Error(rpc::ErrorKind::protocol_error,
                     "rank " + std::to_string(from) + " lends " + std::to_string(bytes) +
                         " bytes at offset " + std::to_string(offset) +
                         ", expected them in the message, because this rank shares no memory with that rank");
  }
  // The number of collectives that have started, if the backend numbers them itself; otherwise 0.
  virtual std::uint64_t begun() const { return 0; }
  // A member has left: from now on, the program's threads must not wait for other ranks.
  virtual void member_left() {}
  // The group has ended: collectives in shared memory stop, and report their end.
  virtual void stop() {}
};

}  // namespace weft::collectives

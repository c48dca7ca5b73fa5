// SharedBackend: collectives in memory that all ranks share, as transfers of a SharedQueue.
//
// A small collective for which its caller waits runs on the caller's thread, if the other ranks arrive soon.
// Such a collective uses no turn of the group, and no lock except the queue's. As thread-safe as Backend.
#pragma once

#include <weft/parallel/collectives/internal/group/backend.h>
#include <weft/parallel/collectives/internal/shm/shared_queue.h>

namespace weft::collectives {

class WEFT_EXPORT SharedBackend final : public Backend {
 public:
  // space: of all ranks.
  explicit SharedBackend(std::shared_ptr<SharedSpace> space) : queue_(std::move(space)) {}

  std::shared_ptr<CollectiveInFlight> make(std::shared_ptr<GroupCollectives> group,
                                           Collective&& collective) override;
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return queue_.space().allocate(bytes); }
  std::optional<std::uint64_t> offset_for(int, const rpc::Buffer& memory) const override {
    return queue_.space().offset_of(memory.data(), memory.size());
  }
  rpc::Buffer memory_of(int from, std::uint64_t offset, std::size_t bytes) const override {
    return {nullptr, queue_.space().memory_of(from, offset, bytes), bytes};
  }
  std::uint64_t begun() const override { return queue_.begun(); }
  void member_left() override { queue_.disable_inline(); }
  void stop() override { queue_.stop(); }

 private:
  SharedQueue queue_;
};

}  // namespace weft::collectives

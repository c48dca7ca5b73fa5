// HostsBackend: collectives in levels (levels.h): in the memory of each host, by messages between hosts, and
// in memory again. An operation without levels is a plan of messages between all ranks.
//
// The ranks of a host run the levels of all collectives in one order: the first level of a collective waits
// for the last level of the one before. As thread-safe as Backend.
#pragma once

#include <weft/parallel/collectives/internal/hosts/levels.h>
#include <weft/parallel/collectives/internal/messages/messages_backend.h>
#include <weft/parallel/collectives/internal/shm/shared_queue.h>

#include <deque>

namespace weft::collectives {

class WEFT_EXPORT HostsBackend final : public Backend {
 public:
  // space: of the ranks of this host. messages: of all ranks.
  HostsBackend(Hosts hosts, std::shared_ptr<SharedSpace> space, std::unique_ptr<MessagesBackend> messages)
      : hosts_(std::move(hosts)), queue_(std::move(space)), messages_(std::move(messages)) {}

  std::shared_ptr<CollectiveInFlight> make(std::shared_ptr<GroupCollectives> group,
                                           Collective&& collective) override;
  std::shared_ptr<std::byte> allocate(std::size_t bytes) override { return queue_.space().allocate(bytes); }
  std::optional<std::uint64_t> offset_for(int to, const rpc::Buffer& memory) const override;
  rpc::Buffer memory_of(int from, std::uint64_t offset, std::size_t bytes) const override;
  void member_left() override { queue_.disable_inline(); }
  void stop() override;

 private:
  class InLevels;  // one collective in levels
  void begin_level();

  const Hosts hosts_;
  SharedQueue queue_;
  const std::unique_ptr<MessagesBackend> messages_;
  std::deque<std::shared_ptr<InLevels>> waiting_;  // in the order of begin(); the first one is in progress
};

}  // namespace weft::collectives

// CollectivesLayer: the groups of one agent; a layer of the agent, found by CollectivesLayer::of().
// Thread-safe.
#pragma once

#include <weft/parallel/collectives/internal/group/group_core.h>
#include <weft/parallel/collectives/internal/group/group_service.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/call/call_hook.h>
#include <weft/rpc/core/mutex.h>

#include <deque>
#include <map>
#include <set>
#include <vector>

namespace weft::collectives {

class WEFT_EXPORT CollectivesLayer final : public rpc::CallHook,
                                           public std::enable_shared_from_this<CollectivesLayer> {
 public:
  CollectivesLayer(std::shared_ptr<rpc::AgentCore> core, nccl::DevicesOptions devices);
  static std::shared_ptr<CollectivesLayer> of(
      const rpc::CallHost& host);  // failed_precondition without the layer

  // core(): the agent's core. devices(), flights(): the agent's devices, and the writer of its flight
  // recorders, which its groups share. Never null.
  const std::shared_ptr<rpc::AgentCore>& core() const { return core_; }
  const std::shared_ptr<nccl::Devices>& devices() const { return devices_; }
  const std::shared_ptr<FlightWriter>& flights() const { return flights_; }
  // The number of a new group, unique within this agent: GroupId::number, if this agent is rank 0 of the
  // group.
  std::uint64_t next_number() { return ++numbers_; }

  // While a group is being created, other members may have created it already and send messages. The layer
  // keeps messages for unknown groups until the last group that is being created is added or given up. It
  // keeps as many messages and bytes as the options of these groups allow together (max_early_messages,
  // max_early_bytes). Beyond these limits, deliver() refuses messages, and a group whose message was refused
  // fails once it is added.
  void expect_group(const GroupOptions& options);
  void add(const std::shared_ptr<GroupCore>& group);  // after expect_group() with the group's options
  void give_up_group(const GroupOptions& options);
  // why: the error with which the group has failed, if it has. Members that send to the group later get this
  // error.
  void remove(const GroupId& id, const std::optional<rpc::Error>& why = std::nullopt);
  // The number of groups that have been added and still exist.
  std::size_t groups() const;

  std::size_t kept_early() const;  // the number of messages for groups that are being created
  Activity activity(const std::string& group) const;
  // Members that had not begun a collective when its group failed because of that. late_members() returns
  // those since its last call.
  void add_late(const rpc::AgentId& member);
  std::set<rpc::AgentId> late_members();
  // All groups that have been added and still exist.
  std::vector<std::shared_ptr<GroupCore>> all() const;

  // Delivers a message of `bytes` bytes: calls `event` with the GroupCore of this agent, or keeps `event`
  // until an expected group is added. Returns an error if the message was refused, because it exceeded the
  // limits for expected groups, or because the group has ended.
  using Event = rpc::UniqueFunction<void(GroupCore&)>;
  std::optional<rpc::Error> deliver(const GroupId& id, std::size_t bytes, Event event);

  std::shared_ptr<GroupCore> find(const GroupId& id) const;  // null: none

  // Adds to a figure of the agent's statistics, for higher layers. An example of a figure:
  // "data_parallel.iterations".
  void count(const std::string& figure, std::uint64_t amount);

  bool knows(std::string_view) const override { return false; }
  void stats(rpc::LayerStats& to) const override;
  void peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) override;
  void peer_forgotten(const rpc::AgentId& peer, const rpc::Error& reason) override;
  void job_failed(const rpc::Error& error) override;
  rpc::Future<void> leaving() override;
  void shut_down() override;

 private:
  struct Expected {  // a group that is being created
    std::string name;
    std::size_t messages, bytes;  // its limits
    friend bool operator==(const Expected&, const Expected&) = default;
  };
  static Expected expected(const GroupOptions& options);
  struct Early {  // the messages for one group that is not added yet
    std::vector<Event> events;
    std::size_t bytes = 0;
    std::optional<rpc::Error> refused;  // why further messages are refused
  };
  using EarlyGroups = std::map<GroupId, Early>;
  std::optional<rpc::Error> keep_early(const GroupId& id, std::size_t bytes, Event event)
      WEFT_REQUIRES(mutex_);
  // The caller destroys `dropped` after it has released the mutex.
  void expected_no_more(const Expected& group, EarlyGroups& dropped) WEFT_REQUIRES(mutex_);

  const std::shared_ptr<rpc::AgentCore> core_;
  const std::shared_ptr<nccl::Devices> devices_;
  const std::shared_ptr<FlightWriter> flights_ = std::make_shared<FlightWriter>();
  std::atomic<std::uint64_t> numbers_{0}, delivered_{0};
  mutable rpc::Mutex mutex_;
  std::map<GroupId, std::weak_ptr<GroupCore>> groups_ WEFT_GUARDED_BY(mutex_);
  rpc::LayerStats figures_ WEFT_GUARDED_BY(mutex_);  // the figures of count()
  std::vector<Expected> expected_ WEFT_GUARDED_BY(mutex_);
  EarlyGroups early_ WEFT_GUARDED_BY(mutex_);
  std::size_t early_messages_ WEFT_GUARDED_BY(mutex_) = 0;
  std::size_t early_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
  std::set<rpc::AgentId> late_ WEFT_GUARDED_BY(mutex_);
  // The latest groups that have failed and are removed.
  std::deque<std::pair<GroupId, rpc::Error>> failed_ WEFT_GUARDED_BY(mutex_);
  std::map<rpc::AgentId, rpc::Error> gone_ WEFT_GUARDED_BY(mutex_);  // peers; kept while groups are expected
};

}  // namespace weft::collectives

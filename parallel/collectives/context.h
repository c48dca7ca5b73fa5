// Context: the groups of one agent, as a layer of it; found by Context::of(). Thread-safe.
#pragma once

#include <weft/parallel/collectives/group_core.h>
#include <weft/parallel/collectives/nccl/devices.h>
#include <weft/rpc/agent/agent.h>
#include <weft/rpc/core/handler_pool.h>

#include <map>
#include <mutex>
#include <vector>

namespace weft::collectives {

class WEFT_EXPORT Context final : public rpc::CallHook, public std::enable_shared_from_this<Context> {
 public:
  Context(std::shared_ptr<rpc::AgentCore> core, nccl::DevicesOptions devices);
  static std::shared_ptr<Context> of(rpc::AgentCore& core);  // failed_precondition without the layer

  const std::shared_ptr<rpc::AgentCore>& core() const { return core_; }
  const std::shared_ptr<nccl::Devices>& devices() const { return devices_; }
  std::uint64_t next_number() { return ++numbers_; }

  // While a group is being made its members may already have heard of all, and begin: what comes for groups
  // that are not known yet is kept until the last of those that are being made is there, or given up.
  void expect_group();
  void add(const std::shared_ptr<GroupCore>& group);  // one that was expected
  void give_up_group();
  void remove(const GroupId& id);
  std::size_t groups() const;
  std::vector<std::shared_ptr<GroupCore>> all() const;

  // What `from` sent to a group's member here.
  using Event = rpc::UniqueFunction<void(GroupCore&)>;
  void deliver(const GroupId& id, Event event);
  std::shared_ptr<GroupCore> find(const GroupId& id) const;  // null: none

  // Runs jobs that write files, one after the other on a thread of their own; shut_down() waits for them.
  void write(rpc::Job job);

  bool knows(std::string_view) const override { return false; }
  void figures(rpc::LayerFigures& to) const override;
  void peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) override;
  void peer_forgotten(const rpc::AgentId& peer, const rpc::Error& reason) override;
  void world_failed(const rpc::Error& error) override;
  rpc::Future<void> leaving() override;
  void shut_down() override;

 private:
  void drop_early_unless_expected(std::map<GroupId, std::vector<Event>>& dropped);

  const std::shared_ptr<rpc::AgentCore> core_;
  const std::shared_ptr<nccl::Devices> devices_;
  std::atomic<std::uint64_t> numbers_{0};
  mutable std::mutex mutex_;  // guards what follows
  std::map<GroupId, std::weak_ptr<GroupCore>> groups_;
  std::size_t expected_ = 0;
  std::map<GroupId, std::vector<Event>> early_;
  std::map<rpc::AgentId, rpc::Error> gone_;   // while groups are expected
  std::unique_ptr<rpc::HandlerPool> writer_;  // one thread; made when it is needed
  bool ended_ = false;
};

// The layer of collectives; it needs no other. devices: where NCCL comes from.
WEFT_EXPORT rpc::Layer layer(nccl::DevicesOptions devices = {});

}  // namespace weft::collectives

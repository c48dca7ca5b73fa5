#include <weft/parallel/collectives/internal/group/collectives_layer.h>

#include <weft/rpc/core/when_all.h>
#include <weft/rpc/endpoint/agent_core.h>

#include <algorithm>
#include <cstdint>

namespace weft::collectives {

CollectivesLayer::CollectivesLayer(std::shared_ptr<rpc::AgentCore> core, nccl::DevicesOptions devices)
    : core_(std::move(core)), devices_(std::make_shared<nccl::Devices>(std::move(devices))) {}

std::shared_ptr<CollectivesLayer> CollectivesLayer::of(const rpc::CallHost& host) {
  auto layer = host.layers().share<CollectivesLayer>();
  if (layer == nullptr)
    throw rpc::Error(
        rpc::ErrorKind::failed_precondition,
        "this agent was created without collectives: pass collectives::layer() to its constructor");
  return layer;
}

CollectivesLayer::Expected CollectivesLayer::expected(const GroupOptions& options) {
  return {options.name, options.max_early_messages, options.max_early_bytes};
}

void CollectivesLayer::expect_group(const GroupOptions& options) {
  rpc::MutexLock lock(mutex_);
  expected_.push_back(expected(options));
}

// Early messages are delivered first: until the group has received all of them, it is not registered, and new
// ones are kept.
void CollectivesLayer::add(const std::shared_ptr<GroupCore>& group) {
  std::map<rpc::AgentId, rpc::Error> gone;
  EarlyGroups dropped;
  while (true) {
    Early early;
    {
      rpc::MutexLock lock(mutex_);
      if (auto found = early_.extract(group->id())) early = std::move(found.mapped());
      early_messages_ -= early.events.size();
      early_bytes_ -= early.bytes;
      if (early.events.empty() && !early.refused) {
        groups_[group->id()] = group;
        gone = gone_;
        expected_no_more(expected(group->options()), dropped);
        break;
      }
    }
    if (early.refused) group->failure().fail(*early.refused);
    for (Event& event : early.events) event(*group);
  }
  for (const auto& [peer, reason] : gone) group->failure().peer_gone(peer, reason);
}

void CollectivesLayer::give_up_group(const GroupOptions& options) {
  EarlyGroups dropped;
  rpc::MutexLock lock(mutex_);
  expected_no_more(expected(options), dropped);
}

void CollectivesLayer::expected_no_more(const Expected& group, EarlyGroups& dropped) {
  expected_.erase(std::find(expected_.begin(), expected_.end(), group));
  if (!expected_.empty()) return;
  dropped.swap(early_);
  early_messages_ = early_bytes_ = 0;
  gone_.clear();
}

std::optional<rpc::Error> CollectivesLayer::keep_early(const GroupId& id, std::size_t bytes, Event event) {
  struct {
    std::size_t messages = 0, bytes = 0;
  } limits;
  for (const Expected& each : expected_) {
    limits.messages += std::min(each.messages, SIZE_MAX - limits.messages);
    limits.bytes += std::min(each.bytes, SIZE_MAX - limits.bytes);
  }
  const auto known = early_.find(id);
  if (known != early_.end() && known->second.refused) return known->second.refused;
  if (early_messages_ + 1 > limits.messages || early_bytes_ + bytes > limits.bytes) {
    rpc::Error refused(rpc::ErrorKind::resource_exhausted,
                       "other members have sent " + std::to_string(early_messages_ + 1) + " messages of " +
                           std::to_string(early_bytes_ + bytes) + " bytes before " + core_->id().name +
                           " created the group, more than max_early_messages (" +
                           std::to_string(limits.messages) + ") or max_early_bytes (" +
                           std::to_string(limits.bytes) +
                           ") of GroupOptions: wait for results before further messages, or raise the limit");
    // The list of refused groups is limited, too: a member may send messages for groups that never exist.
    if (known != early_.end() || early_.size() < limits.messages + expected_.size())
      early_[id].refused = refused;
    return refused;
  }
  Early& early = early_[id];
  ++early_messages_;
  early_bytes_ += bytes;
  early.bytes += bytes;
  early.events.push_back(std::move(event));
  return std::nullopt;
}

std::size_t CollectivesLayer::kept_early() const {
  rpc::MutexLock lock(mutex_);
  return early_messages_;
}

void CollectivesLayer::remove(const GroupId& id, const std::optional<rpc::Error>& why) {
  constexpr std::size_t remembered = 64;
  rpc::MutexLock lock(mutex_);
  groups_.erase(id);
  if (!why) return;
  failed_.emplace_back(id, *why);
  if (failed_.size() > remembered) failed_.pop_front();
}

std::size_t CollectivesLayer::groups() const {
  rpc::MutexLock lock(mutex_);
  return groups_.size();
}

std::shared_ptr<GroupCore> CollectivesLayer::find(const GroupId& id) const {
  rpc::MutexLock lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.lock();
}

std::optional<rpc::Error> CollectivesLayer::deliver(const GroupId& id, std::size_t bytes, Event event) {
  ++delivered_;
  std::shared_ptr<GroupCore> group;
  {
    rpc::MutexLock lock(mutex_);
    const auto found = groups_.find(id);
    const auto failed =
        std::find_if(failed_.begin(), failed_.end(), [&](const auto& each) { return each.first == id; });
    if (found != groups_.end()) {
      group = found->second.lock();
    } else if (failed != failed_.end()) {
      return failed->second;
    } else if (!expected_.empty()) {
      return keep_early(id, bytes, std::move(event));
    }
  }
  if (group == nullptr)
    return rpc::Error(rpc::ErrorKind::aborted,
                      core_->id().name + " has released this group: no handle of the group is left there");
  event(*group);
  return std::nullopt;
}

std::vector<std::shared_ptr<GroupCore>> CollectivesLayer::all() const {
  std::vector<std::shared_ptr<GroupCore>> groups;
  rpc::MutexLock lock(mutex_);
  for (const auto& [id, weak] : groups_)
    if (auto group = weak.lock()) groups.push_back(std::move(group));
  return groups;
}

Activity CollectivesLayer::activity(const std::string& group) const {
  Activity activity{.begun = numbers_ + delivered_};
  {
    rpc::MutexLock lock(mutex_);
    for (const Expected& each : expected_) activity.takes_part |= each.name == group;
  }
  for (const auto& each : all()) {
    activity.takes_part |= each->options().name == group;
    activity.begun += each->collectives().begun();
  }
  return activity;
}

void CollectivesLayer::add_late(const rpc::AgentId& member) {
  rpc::MutexLock lock(mutex_);
  late_.insert(member);
}

std::set<rpc::AgentId> CollectivesLayer::late_members() {
  rpc::MutexLock lock(mutex_);
  return std::exchange(late_, {});
}

void CollectivesLayer::stats(rpc::LayerStats& to) const {
  to["collectives.groups"] = groups();
  rpc::MutexLock lock(mutex_);
  to.insert(figures_.begin(), figures_.end());
}

void CollectivesLayer::count(const std::string& figure, std::uint64_t amount) {
  rpc::MutexLock lock(mutex_);
  figures_[figure] += amount;
}

void CollectivesLayer::peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) {
  {
    rpc::MutexLock lock(mutex_);
    if (!expected_.empty()) gone_.insert_or_assign(peer, reason);
  }
  const nccl::Devices::AbortsTogether together(*devices_);
  for (const auto& group : all()) group->failure().peer_gone(peer, reason);
}

void CollectivesLayer::peer_forgotten(const rpc::AgentId& peer, const rpc::Error& reason) {
  peer_gone(peer, reason);
}

void CollectivesLayer::job_failed(const rpc::Error& error) {
  const nccl::Devices::AbortsTogether together(*devices_);
  for (const auto& group : all()) group->failure().job_failed(error);
}

rpc::Future<void> CollectivesLayer::leaving() {
  auto together = std::make_shared<nccl::Devices::AbortsTogether>(*devices_);
  std::vector<rpc::Future<void>> left;
  for (const auto& group : all()) left.push_back(group->failure().leave());
  // The devices' loop completes the last future; the layers below continue on the agent's loop.
  rpc::Promise<void> promise(core_->pick_loop());
  auto future = promise.future();
  rpc::when_all(std::move(left))
      .then([devices = devices_, together = std::move(together), loop = core_->pick_loop(),
             promise = std::move(promise)](rpc::Result<void>&&) mutable {
        together.reset();
        devices->closed().then([loop, promise = std::move(promise)](rpc::Result<void>&& closed) mutable {
          loop->post([promise = std::move(promise), closed = std::move(closed)]() mutable {
            promise.complete(std::move(closed));
          });
        });
      });
  return future;
}

void CollectivesLayer::shut_down() {
  const nccl::Devices::AbortsTogether together(*devices_);
  for (const auto& group : all()) group->failure().end();
  flights_->end();
}

}  // namespace weft::collectives

#include <weft/parallel/collectives/context.h>

#include <weft/parallel/collectives/group_service.h>

namespace weft::collectives {

Context::Context(std::shared_ptr<rpc::AgentCore> core, nccl::DevicesOptions devices)
    : core_(std::move(core)), devices_(std::make_shared<nccl::Devices>(std::move(devices))) {}

std::shared_ptr<Context> Context::of(rpc::AgentCore& core) {
  auto context = core.layers().share<Context>();
  if (context == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "this agent was made without the layer of collectives: collectives::layer()");
  return context;
}

void Context::expect_group() {
  std::lock_guard lock(mutex_);
  ++expected_;
}

// What came early comes first: until it has been told all, the group is not known, and what comes waits.
void Context::add(const std::shared_ptr<GroupCore>& group) {
  std::map<rpc::AgentId, rpc::Error> gone;
  std::map<GroupId, std::vector<Event>> dropped;
  while (true) {
    std::vector<Event> events;
    {
      std::lock_guard lock(mutex_);
      if (auto early = early_.extract(group->id())) events = std::move(early.mapped());
      if (events.empty()) {
        groups_[group->id()] = group;
        gone = gone_;
        --expected_;
        drop_early_unless_expected(dropped);
        break;
      }
    }
    for (Event& event : events) event(*group);
  }
  for (const auto& [peer, reason] : gone) group->peer_gone(peer, reason);
}

void Context::give_up_group() {
  std::map<GroupId, std::vector<Event>> dropped;
  std::lock_guard lock(mutex_);
  --expected_;
  drop_early_unless_expected(dropped);
}

// What is dropped is let go of outside the mutex.
void Context::drop_early_unless_expected(std::map<GroupId, std::vector<Event>>& dropped) {
  if (expected_ != 0) return;
  dropped.swap(early_);
  gone_.clear();
}

void Context::remove(const GroupId& id) {
  std::lock_guard lock(mutex_);
  groups_.erase(id);
}

std::size_t Context::groups() const {
  std::lock_guard lock(mutex_);
  return groups_.size();
}

std::shared_ptr<GroupCore> Context::find(const GroupId& id) const {
  std::lock_guard lock(mutex_);
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second.lock();
}

void Context::deliver(const GroupId& id, Event event) {
  std::shared_ptr<GroupCore> group;
  {
    std::lock_guard lock(mutex_);
    const auto found = groups_.find(id);
    if (found != groups_.end()) {
      group = found->second.lock();
    } else if (expected_ != 0) {
      early_[id].push_back(std::move(event));
    }
  }
  if (group != nullptr) event(*group);
}

std::vector<std::shared_ptr<GroupCore>> Context::all() const {
  std::vector<std::shared_ptr<GroupCore>> groups;
  std::lock_guard lock(mutex_);
  for (const auto& [id, weak] : groups_)
    if (auto group = weak.lock()) groups.push_back(std::move(group));
  return groups;
}

void Context::figures(rpc::LayerFigures& to) const { to["collectives.groups"] = groups(); }

void Context::peer_gone(const rpc::AgentId& peer, const rpc::Error& reason) {
  {
    std::lock_guard lock(mutex_);
    if (expected_ != 0) gone_.insert_or_assign(peer, reason);
  }
  const nccl::Devices::AbortsTogether together(*devices_);
  for (const auto& group : all()) group->peer_gone(peer, reason);
}

void Context::peer_forgotten(const rpc::AgentId& peer, const rpc::Error& reason) { peer_gone(peer, reason); }

void Context::world_failed(const rpc::Error& error) {
  const nccl::Devices::AbortsTogether together(*devices_);
  for (const auto& group : all()) group->world_failed(error);
}

rpc::Future<void> Context::leaving() {
  const nccl::Devices::AbortsTogether together(*devices_);
  for (const auto& group : all()) group->leave();
  // The devices' loop completes it; the layers below go on on the agent's.
  rpc::Promise<void> promise(core_->pick_loop());
  auto future = promise.future();
  devices_->closed().then([loop = core_->pick_loop(), promise = std::move(promise)](auto&& closed) mutable {
    loop->post([promise = std::move(promise), closed = std::move(closed)]() mutable {
      promise.complete(std::move(closed));
    });
  });
  return future;
}

void Context::shut_down() {
  const nccl::Devices::AbortsTogether together(*devices_);
  for (const auto& group : all()) group->end();
  std::unique_ptr<rpc::HandlerPool> writer;  // its end waits for its jobs
  std::lock_guard lock(mutex_);
  ended_ = true;
  writer.swap(writer_);
}

void Context::write(rpc::Job job) {
  {
    std::lock_guard lock(mutex_);
    if (!ended_) {
      if (writer_ == nullptr) writer_ = std::make_unique<rpc::HandlerPool>(1);
      return writer_->post(std::move(job));
    }
  }
  job();
}

rpc::Layer layer(nccl::DevicesOptions devices) {
  return [devices = std::move(devices)](rpc::Agent& agent) {
    auto context = std::make_shared<Context>(agent.core(), devices);
    agent.core()->layers().put(context);
    agent.core()->add_hook(context);
    auto service = std::make_shared<GroupService>();
    service->context = context;
    agent.serve(service);
  };
}

}  // namespace weft::collectives

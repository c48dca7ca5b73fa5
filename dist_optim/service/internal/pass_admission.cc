#include <weft/dist_optim/service/internal/pass_admission.h>

#include <weft/dist_autograd/internal/autograd_layer.h>
#include <weft/dist_optim/service/internal/owner_call.h>

#include <algorithm>

namespace weft::dist_optim {

void PassAdmission::Handle::attached(Objects all) {
  std::vector<rpc::Promise<void>> done;
  {
    rpc::MutexLock lock(mutex);
    known = true;
    objects = std::move(all);
    done.swap(waiting);
  }
  for (auto& one : done) one.complete(rpc::Result<void>{});
}

rpc::Future<void> PassAdmission::Handle::when_known() {
  rpc::MutexLock lock(mutex);
  if (known) return rpc::Future<void>::made(rpc::Result<void>{});
  return waiting.emplace_back().future();
}

void PassAdmission::add(const std::shared_ptr<Handle>& handle) {
  rpc::MutexLock lock(mutex_);
  std::erase_if(handles_, [](const auto& weak) { return weak.expired(); });
  handles_.push_back(handle);
}

std::vector<std::shared_ptr<PassAdmission::Handle>> PassAdmission::handles() const {
  std::vector<std::shared_ptr<Handle>> all;
  rpc::MutexLock lock(mutex_);
  for (const auto& weak : handles_)
    if (auto handle = weak.lock()) all.push_back(std::move(handle));
  return all;
}

PassAdmission::Objects PassAdmission::closure(Objects objects) const {
  auto left = handles();
  for (std::size_t before = left.size() + 1; left.size() < before;) {
    before = left.size();
    std::erase_if(left, [&](const std::shared_ptr<Handle>& handle) {
      const Objects own = handle->objects_so_far();
      if (std::none_of(own.begin(), own.end(), [&](const auto& one) { return objects.contains(one.first); }))
        return false;
      for (const auto& [key, module] : own) objects[key] = module;  // including the object of the request
      return true;
    });
  }
  return objects;
}

// The admissions of a pass, which end with it.
std::shared_ptr<PassAdmission::Admitted> PassAdmission::admitted(const dist_autograd::PassId& pass) {
  const auto state = dist_autograd::AutogradLayer::of(*core_)->find_if_known(pass);
  if (state == nullptr)
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     to_string(pass) + " cannot read any more: it has failed or was released");
  std::shared_ptr<Admitted> fresh;
  {
    rpc::MutexLock lock(mutex_);
    auto& known = passes_[pass];
    if (known != nullptr) return known;
    fresh = known = std::make_shared<Admitted>();
  }
  state->on_end([weak = weak_from_this(), fresh, pass] {
    if (const auto self = weak.lock()) {
      rpc::MutexLock lock(self->mutex_);
      self->passes_.erase(pass);
    }
    Objects objects;
    {
      rpc::MutexLock lock(fresh->mutex);
      fresh->over = true;
      objects.swap(fresh->objects);
    }
    for (const auto& [key, module] : objects)
      ask<&OptimizerService::release>(module, pass).then([](auto&&) {});
  });
  return fresh;
}

rpc::Task<PassAdmission::Objects> PassAdmission::objects_with(std::shared_ptr<PassAdmission> self,
                                                              std::uint64_t owner, std::uint64_t object) {
  for (const auto& handle : self->handles())
    if (std::find(handle->owners.begin(), handle->owners.end(), owner) != handle->owners.end())
      co_await handle->when_known();
  Objects asked;
  asked[{owner, object}] = nullptr;
  Objects all = self->closure(std::move(asked));
  std::erase_if(all, [](const auto& one) { return one.second == nullptr; });
  co_return all;
}

rpc::Task<PassAdmission::Objects> PassAdmission::objects_of(std::shared_ptr<PassAdmission> self,
                                                            std::shared_ptr<Handle> handle) {
  co_await handle->when_known();
  co_return self->closure(handle->objects_so_far());
}

rpc::Task<void> PassAdmission::admit_all(std::shared_ptr<Admitted> to, dist_autograd::PassId pass,
                                         rpc::Task<Objects> which, Version version) {
  const Objects objects = co_await std::move(which);
  for (const auto& [key, module] : objects) {
    std::optional<std::string> trainer;
    bool asked = false;
    {
      rpc::MutexLock lock(to->mutex);
      if (to->over) co_return;
      trainer = to->trainer;
      asked = !to->objects.emplace(key, module).second;
      if (asked && !version) continue;
    }
    auto admitted = ask<&OptimizerService::admit>(module, pass, trainer, version);
    std::exception_ptr refused;
    try {
      co_await std::move(admitted);
    } catch (...) {
      refused = std::current_exception();
    }
    rpc::MutexLock lock(to->mutex);
    if (refused != nullptr) {
      if (!asked) to->objects.erase(key);  // the next admission asks again
      std::rethrow_exception(refused);
    }
    to->done.insert(key);
  }
}

rpc::Future<void> PassAdmission::start(const dist_autograd::PassId& pass, rpc::Task<Objects> which,
                                       Version version) {
  rpc::Promise<void> promise;
  auto future = promise.future();
  std::shared_ptr<Admitted> to;
  try {
    to = admitted(pass);
  } catch (...) {
    return rpc::Future<void>::made(std::current_exception());
  }
  // Admits to one object at a time, so that the order holds for the pass as a whole.
  to->order.run(
      [core = core_, to, pass, which = std::move(which), version, promise = std::move(promise)]() mutable {
        admit_all(to, pass, std::move(which), version)
            .start(core->handlers())
            .then([to, promise = std::move(promise)](rpc::Result<void>&& result) mutable {
              to->order.next();
              promise.complete(std::move(result));
            });
      });
  return future;
}

rpc::Future<void> PassAdmission::admit(const dist_autograd::PassId& pass, const rpc::AgentId& owner,
                                       std::uint64_t object) {
  return start(pass, objects_with(shared_from_this(), owner.incarnation, object));
}

bool PassAdmission::is_admitted(const dist_autograd::PassId& pass, Handle& handle) const {
  Objects own;
  {
    rpc::MutexLock lock(handle.mutex);
    if (!handle.known) return false;
    own = handle.objects;
  }
  std::shared_ptr<Admitted> known;
  {
    rpc::MutexLock lock(mutex_);
    const auto found = passes_.find(pass);
    if (found == passes_.end()) return false;
    known = found->second;
  }
  const Objects all = closure(std::move(own));
  rpc::MutexLock lock(known->mutex);
  if (known->trainer.value_or("") != handle.trainer) return false;
  return std::all_of(all.begin(), all.end(), [&](const auto& one) WEFT_REQUIRES(known->mutex) {
    return known->done.contains(one.first);
  });
}

rpc::Future<void> PassAdmission::admit(const dist_autograd::PassId& pass,
                                       const std::shared_ptr<Handle>& handle, Version version) {
  if (!version && is_admitted(pass, *handle)) return rpc::Future<void>::made(rpc::Result<void>{});
  try {
    const auto to = admitted(pass);
    rpc::MutexLock lock(to->mutex);
    if (!to->trainer && to->objects.empty()) to->trainer = handle->trainer;
    if (to->trainer.value_or("") != handle->trainer)
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "admit: " + to_string(pass) + " belongs to the trainer '" + to->trainer.value_or("") +
                           "' of this agent, not to '" + handle->trainer +
                           "': admit the pass before it first reads a module of the handle");
  } catch (...) {
    return rpc::Future<void>::made(std::current_exception());
  }
  return start(pass, objects_of(shared_from_this(), handle), version);
}

}  // namespace weft::dist_optim

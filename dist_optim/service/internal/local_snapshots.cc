#include <weft/dist_optim/service/internal/local_snapshots.h>

#include <weft/rpc/endpoint/agent_core.h>

#include <ATen/core/grad_mode.h>

#include <algorithm>

namespace weft::dist_optim {

void LocalSnapshots::arrive(const Key& key, std::size_t modules, Object object) {
  std::vector<Object> all;
  {
    rpc::MutexLock lock(mutex_);
    auto& arrived = arrived_[key];
    arrived.push_back(std::move(object));
    if (arrived.size() < modules) return;
    all = std::move(arrived);
    arrived_.erase(key);
  }
  take(std::move(all));
}

void LocalSnapshots::abort(const Key& key) {
  std::vector<Object> all;
  {
    rpc::MutexLock lock(mutex_);
    if (auto found = arrived_.extract(key)) all = std::move(found.mapped());
  }
  const auto error =
      std::make_exception_ptr(rpc::Error(rpc::ErrorKind::aborted, "the trainer has aborted the snapshot"));
  for (const Object& object : all)
    if (object.done) object.done(error);
}

void LocalSnapshots::take(std::vector<Object> objects) {
  std::vector<std::shared_ptr<OwnedParametersGuard>> guards;
  for (const Object& object : objects)
    if (object.guard != nullptr) guards.push_back(object.guard);
  std::sort(guards.begin(), guards.end());
  guards.erase(std::unique(guards.begin(), guards.end()), guards.end());
  steps_->hold(guards, [self = shared_from_this(), guards, objects = std::move(objects)](std::uint64_t hold) {
    // Not on this thread: it may be in a step, or read one of the modules.
    self->core_->handlers().post([self, guards, objects, hold] {
      std::exception_ptr error;
      try {
        read_all(guards, objects);
      } catch (...) {
        error = std::current_exception();
      }
      self->steps_->release(hold);
      for (const Object& object : objects)
        if (object.done) object.done(error);
    });
  });
}

void LocalSnapshots::read_all(const std::vector<std::shared_ptr<OwnedParametersGuard>>& guards,
                              const std::vector<Object>& objects) {
  const at::NoGradGuard no_grad;
  std::vector<OwnedParameters::Reading> inside;
  for (const auto& guard : guards) inside.push_back(guard->owned().read_newest());
  for (const Object& object : objects)
    if (object.read) object.read();
}

}  // namespace weft::dist_optim

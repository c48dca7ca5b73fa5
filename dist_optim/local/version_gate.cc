#include <weft/dist_optim/local/version_gate.h>
#include <weft/rpc/core/error.h>

#include <string>
#include <utility>

namespace weft::dist_optim {
VersionGate::VersionGate(Version loaded, Load load)
    : load_(std::move(load)), loaded_(loaded), newest_(loaded) {}

void VersionGate::enter(Version version) {
  rpc::MutexLock lock(mutex_);
  if (auto inside = inside_.find(std::this_thread::get_id()); inside != inside_.end()) {
    if (version != loaded_) {
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "a thread that reads version " + std::to_string(loaded_) +
                           " of the parameters requests version " + std::to_string(version) +
                           " before it leaves");
    }
    ++inside->second;
    return;
  }
  wait_in_line(lock, Waiter::Kind::version, version);
}

void VersionGate::enter_newest() {
  rpc::MutexLock lock(mutex_);
  if (auto inside = inside_.find(std::this_thread::get_id()); inside != inside_.end()) {
    ++inside->second;
    return;
  }
  wait_in_line(lock, Waiter::Kind::newest, 0);
}

void VersionGate::leave() {
  rpc::MutexLock lock(mutex_);
  auto inside = inside_.find(std::this_thread::get_id());
  if (inside == inside_.end())
    throw rpc::Error(rpc::ErrorKind::failed_precondition, "a thread leaves parameters that it does not read");
  if (--inside->second > 0) return;
  inside_.erase(inside);
  admit_waiting();
}

void VersionGate::exclusive(const std::function<std::optional<Version>()>& section) {
  {
    rpc::MutexLock lock(mutex_);
    if (inside_.contains(std::this_thread::get_id())) {
      throw rpc::Error(rpc::ErrorKind::failed_precondition,
                       "a thread that reads the parameters requests to change them before it leaves");
    }
    wait_in_line(lock, Waiter::Kind::exclusive, 0);
  }
  std::optional<Version> made;
  auto end = [&] {
    rpc::MutexLock lock(mutex_);
    if (made) loaded_ = newest_ = *made;
    exclusive_.reset();
    admit_waiting();
  };
  try {
    made = section();
  } catch (...) {
    end();
    throw;
  }
  end();
}

void VersionGate::settle() {
  rpc::MutexLock lock(mutex_);
  if (loaded_ == newest_ || exclusive_ || !inside_.empty() || !waiting_.empty()) return;
  load_(newest_);
  loaded_ = newest_;
}

VersionGate::Version VersionGate::loaded() const {
  rpc::MutexLock lock(mutex_);
  return loaded_;
}

std::size_t VersionGate::waiting() const {
  rpc::MutexLock lock(mutex_);
  return waiting_.size();
}

std::uint64_t VersionGate::loads() const {
  rpc::MutexLock lock(mutex_);
  return loads_;
}

// Always through the queue: if it is empty, the waiter is admitted at once and never sleeps.
void VersionGate::wait_in_line(rpc::MutexLock& lock, Waiter::Kind kind, Version version) {
  if (exclusive_ == std::this_thread::get_id()) {
    throw rpc::Error(rpc::ErrorKind::failed_precondition,
                     "a thread that changes the parameters requests them again before it is done");
  }
  Waiter waiter{kind, version, std::this_thread::get_id()};
  waiting_.push_back(&waiter);
  // Only the first in the queue can be admitted by its own arrival.
  if (waiting_.size() == 1) admit_waiting();
  waiter.wake.wait(lock, [&] { return waiter.admitted; });
}

VersionGate::Version VersionGate::wanted_by(const Waiter& waiter) const {
  return waiter.kind == Waiter::Kind::newest ? newest_ : waiter.version;
}

// Admits the waiters that may now enter. A waiter is notified under the lock: it may be destroyed as soon as
// the lock is released.
void VersionGate::admit_waiting() {
  auto admit = [](Waiter& waiter) {
    waiter.admitted = true;
    waiter.wake.notify_one();
  };
  while (!waiting_.empty() && !exclusive_) {
    Waiter& first = *waiting_.front();
    if (first.kind == Waiter::Kind::exclusive) {
      if (!inside_.empty()) return;
      waiting_.pop_front();
      exclusive_ = first.thread;
      admit(first);
      return;
    }
    Version version = wanted_by(first);
    if (version == loaded_) {
      waiting_.pop_front();
      ++inside_[first.thread];
      admit(first);
      continue;
    }
    if (!inside_.empty()) return;
    load_(version);
    loaded_ = version;
    ++loads_;
    std::erase_if(waiting_, [&](Waiter* waiter) WEFT_REQUIRES(mutex_) {
      if (waiter->kind == Waiter::Kind::exclusive || wanted_by(*waiter) != version) return false;
      ++inside_[waiter->thread];
      admit(*waiter);
      return true;
    });
  }
}

}  // namespace weft::dist_optim

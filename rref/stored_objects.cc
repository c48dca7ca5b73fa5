#include <weft/rref/stored_objects.h>

namespace weft::rref {

void StoredObjects::Entry::settle(Found found) {
  if (found.ok()) {
    object = std::move(found).get();
  } else {
    waiters().failure = found.error();
  }
}

StoredObjects::Waiting& StoredObjects::Entry::waiters() {
  if (waiting == nullptr) waiting = std::make_unique<Waiting>();
  return *waiting;
}

bool StoredObjects::when_alive(const RRefId& id, Done done) {
  rpc::MutexLock lock(mutex_);
  if (ended_ != nullptr) {
    const auto error = ended_;
    lock.unlock();
    done(error);
    return true;
  }
  Entry& entry = entries_[id];
  if (!entry.settled() || entry.serving()) {
    entry.waiters().waiters.push(std::move(done));
    return entry.settled();
  }
  Found found = entry.found();
  lock.unlock();
  done(std::move(found));
  return true;
}

void StoredObjects::settle(const RRefId& id, Found found) {
  rpc::MutexLock lock(mutex_);
  if (ended_ != nullptr) return;
  Entry& entry = entries_[id];
  if (entry.settled()) return;
  entry.settle(std::move(found));
  serve(lock, id);
}

void StoredObjects::fail(const RRefId& id, const std::exception_ptr& error) {
  rpc::MutexLock lock(mutex_);
  const auto place = entries_.find(id);
  if (place == entries_.end() || place->second.settled()) return;
  place->second.settle(error);
  serve(lock, id);
}

void StoredObjects::serve(rpc::MutexLock& lock, const RRefId& id) {
  // Each step finds the entry again: it may be erased with the last waiter's hold.
  for (auto place = entries_.find(id); place != entries_.end(); place = entries_.find(id)) {
    Entry& entry = place->second;
    if (entry.waiting == nullptr) return;
    Waiting& waiting = *entry.waiting;
    waiting.serving = !waiting.waiters.empty();
    if (!waiting.serving) {
      if (waiting.failure == nullptr) entry.waiting = nullptr;
      return;
    }
    Done next = waiting.waiters.pop();
    Found found = entry.found();
    const rpc::MutexUnlock unlocked(lock, mutex_);
    next(std::move(found));
    next = nullptr;
  }
}

void StoredObjects::remove(const RRefId& id) {
  decltype(entries_)::node_type node;  // destroyed after the lock is released
  rpc::MutexLock lock(mutex_);
  node = entries_.extract(id);
}

std::vector<std::pair<RRefId, std::shared_ptr<StoredObject>>> StoredObjects::alive() const {
  std::vector<std::pair<RRefId, std::shared_ptr<StoredObject>>> alive;
  rpc::MutexLock lock(mutex_);
  for (const auto& [id, entry] : entries_)
    if (entry.object != nullptr) alive.emplace_back(id, entry.object);
  return alive;
}

void StoredObjects::end(const std::exception_ptr& error) {
  std::map<RRefId, Entry> entries;
  {
    rpc::MutexLock lock(mutex_);
    ended_ = error;
    entries.swap(entries_);
  }
  for (auto& [id, entry] : entries)
    while (entry.waiting != nullptr && !entry.waiting->waiters.empty()) entry.waiting->waiters.pop()(error);
}

}  // namespace weft::rref

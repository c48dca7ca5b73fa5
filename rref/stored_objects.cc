#include <weft/rref/stored_objects.h>

namespace weft::rref {

bool StoredObjects::when_alive(const RRefId& id, Done done) {
  std::unique_lock lock(mutex_);
  if (ended_ != nullptr) {
    const auto error = ended_;
    lock.unlock();
    done(error);
    return true;
  }
  Entry& entry = entries_[id];
  if (!entry.found || entry.serving) {
    entry.waiting.push(std::move(done));
    return entry.found.has_value();
  }
  Found found = *entry.found;
  lock.unlock();
  done(std::move(found));
  return true;
}

void StoredObjects::settle(const RRefId& id, Found found) {
  std::unique_lock lock(mutex_);
  if (ended_ != nullptr) return;
  Entry& entry = entries_[id];
  if (entry.found) return;
  entry.found = std::move(found);
  serve(lock, id);
}

void StoredObjects::fail(const RRefId& id, const std::exception_ptr& error) {
  std::unique_lock lock(mutex_);
  const auto place = entries_.find(id);
  if (place == entries_.end() || place->second.found) return;
  place->second.found = error;
  serve(lock, id);
}

void StoredObjects::serve(std::unique_lock<std::mutex>& lock, const RRefId& id) {
  // Each step finds the entry anew: it may go with the last waiter's hold.
  for (auto place = entries_.find(id); place != entries_.end(); place = entries_.find(id)) {
    Entry& entry = place->second;
    entry.serving = !entry.waiting.empty();
    if (!entry.serving) return;
    Done next = entry.waiting.pop();
    Found found = *entry.found;
    lock.unlock();
    next(std::move(found));
    next = nullptr;
    lock.lock();
  }
}

void StoredObjects::remove(const RRefId& id) {
  decltype(entries_)::node_type node;  // ends after the lock
  std::lock_guard lock(mutex_);
  node = entries_.extract(id);
}

std::vector<std::pair<RRefId, std::shared_ptr<StoredObject>>> StoredObjects::alive() const {
  std::vector<std::pair<RRefId, std::shared_ptr<StoredObject>>> alive;
  std::lock_guard lock(mutex_);
  for (const auto& [id, entry] : entries_) {
    if (!entry.found || !entry.found->ok()) continue;
    Found found = *entry.found;
    alive.emplace_back(id, found.value());
  }
  return alive;
}

void StoredObjects::end(const std::exception_ptr& error) {
  std::map<RRefId, Entry> entries;
  {
    std::lock_guard lock(mutex_);
    ended_ = error;
    entries.swap(entries_);
  }
  for (auto& [id, entry] : entries)
    while (!entry.waiting.empty()) entry.waiting.pop()(error);
}

}  // namespace weft::rref

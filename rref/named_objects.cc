#include <weft/rref/named_objects.h>

namespace weft::rref {

bool NamedObjects::begin(const std::string& name, const std::string& arguments, Done done) {
  rpc::MutexLock lock(mutex_);
  Found found{ended_};
  if (ended_ == nullptr) {
    auto [place, fresh] = entries_.try_emplace(name);
    Entry& entry = place->second;
    if (fresh) {
      entry.arguments = arguments;
      return true;
    }
    if (entry.arguments != arguments) {
      found = std::make_exception_ptr(rpc::Error(
          rpc::ErrorKind::already_exists,
          "'" + name + "' was created with other arguments: " + entry.arguments + ", now " + arguments));
    } else if (entry.stored == nullptr) {
      entry.waiting.push_back(std::move(done));
      return false;
    } else {
      found = entry.stored;
    }
  }
  lock.unlock();
  done(std::move(found));
  return false;
}

void NamedObjects::finish(const std::string& name, Found found) {
  std::vector<Done> waiting;
  {
    rpc::MutexLock lock(mutex_);
    const auto place = entries_.find(name);
    if (place == entries_.end()) return;
    waiting = std::exchange(place->second.waiting, {});
    if (found.ok()) {
      place->second.stored = found.value();
    } else {
      entries_.erase(place);
    }
  }
  for (auto& done : waiting) done(found);
}

std::vector<std::shared_ptr<StoredObject>> NamedObjects::alive() const {
  std::vector<std::shared_ptr<StoredObject>> alive;
  rpc::MutexLock lock(mutex_);
  for (const auto& [name, entry] : entries_)
    if (entry.stored != nullptr) alive.push_back(entry.stored);
  return alive;
}

void NamedObjects::end(const std::exception_ptr& error) {
  std::map<std::string, Entry> entries;
  {
    rpc::MutexLock lock(mutex_);
    ended_ = error;
    entries.swap(entries_);
  }
  for (auto& [name, entry] : entries)
    for (auto& done : entry.waiting) done(error);
}

}  // namespace weft::rref

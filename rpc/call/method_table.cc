#include <weft/rpc/call/method_table.h>

#include <weft/rpc/call/call_host.h>
#include <weft/rpc/call/incoming_call.h>
#include <weft/rpc/core/while_alive.h>

#include <algorithm>
#include <mutex>
#include <utility>

namespace weft::rpc {

void MethodTable::serve(MethodEntry entry) {
  entry.counters = std::make_shared<MethodCounters>();
  auto shared = std::make_shared<MethodEntry>(std::move(entry));
  std::unique_lock lock(mutex_);
  auto& place = entries_[shared->id];
  if (place != nullptr) {
    // A type may be both served and creatable: the entry with an object replaces the one without.
    if (place->name != shared->name)
      throw Error(ErrorKind::already_exists,
                  "'" + shared->name + "' and '" + place->name + "' have the same id");
    if (!shared->needs_object || (place->object != nullptr && shared->object != nullptr))
      throw Error(ErrorKind::already_exists, "'" + shared->name + "' is served already");
    if (shared->object == nullptr) return;
  }
  if (const auto gate = gates_.find(shared->name); gate != gates_.end()) shared->gate = gate->second;
  place = std::move(shared);
}

void MethodTable::limit(const std::string& name, MethodLimit limit) {
  auto gate = std::make_shared<MethodGate>(limit);
  std::unique_lock lock(mutex_);
  gates_[name] = gate;
  for (auto& [id, entry] : entries_) {
    if (entry->name != name) continue;
    auto limited = std::make_shared<MethodEntry>(*entry);
    limited->gate = gate;
    replaced_.push_back(std::exchange(entry, std::move(limited)));
  }
}

std::shared_ptr<const MethodEntry> MethodTable::find(std::uint64_t id) const {
  std::shared_lock lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second;
}

std::vector<std::shared_ptr<const MethodEntry>> MethodTable::all() const {
  std::vector<std::shared_ptr<const MethodEntry>> all;
  {
    std::shared_lock lock(mutex_);
    for (const auto& [id, entry] : entries_) all.push_back(entry);
  }
  std::ranges::sort(all, {}, [](const auto& entry) -> const std::string& { return entry->name; });
  return all;
}

void MethodTable::clear() {
  Entries entries;  // destroyed without the mutex
  std::vector<std::shared_ptr<MethodEntry>> replaced;
  {
    std::unique_lock lock(mutex_);
    entries.swap(entries_);
    replaced.swap(replaced_);
  }
  // Breaks a cycle: a served object may own the promise of an answer, which owns the call and its entry.
  for (const auto& [id, entry] : entries) entry->object = nullptr;
  for (const auto& entry : replaced) entry->object = nullptr;
}

MethodGate::MethodGate(MethodLimit limit) : limit_(limit) {
  if (limit.running == 0)
    throw Error(ErrorKind::invalid_argument, "a method's limit of running calls is 0, expected at least 1");
}

void MethodGate::enter(const std::shared_ptr<IncomingCall>& call) {
  MutexLock lock(mutex_);
  if (running_ < limit_.running) {
    ++running_;
    lock.unlock();
    return call->admitted(shared_from_this());
  }
  if (waiting_.size() >= limit_.waiting) {
    lock.unlock();
    call->host()->counters().calls_shed.add();
    return call->refuse(Error(ErrorKind::resource_exhausted,
                              "too many calls of this method: " + std::to_string(limit_.running) +
                                  " run and " + std::to_string(limit_.waiting) + " wait"));
  }
  waiting_.push_back(call);
  lock.unlock();
  call->on_cancel(while_alive(this, [call = call.get()](MethodGate& gate) { gate.give_up(call); }));
}

void MethodGate::leave() {
  std::shared_ptr<IncomingCall> next;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty()) {
      --running_;
      return;
    }
    next = std::move(waiting_.front());
    waiting_.pop_front();
  }
  // Posts the call: if calls complete at once, a direct call of admitted() would recurse.
  next->executor().post([gate = shared_from_this(), next] { next->admitted(gate); });
}

void MethodGate::give_up(const IncomingCall* call) {
  std::shared_ptr<IncomingCall> gone;
  {
    MutexLock lock(mutex_);
    const auto found = std::find_if(waiting_.begin(), waiting_.end(),
                                    [&](const auto& waiting) { return waiting.get() == call; });
    if (found == waiting_.end()) return;
    gone = std::move(*found);
    waiting_.erase(found);
  }
  gone->refuse(Error(ErrorKind::cancelled, "the call ended before its handler ran"));
}

}  // namespace weft::rpc

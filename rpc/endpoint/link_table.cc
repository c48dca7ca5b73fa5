#include <weft/rpc/endpoint/link_table.h>

#include <weft/rpc/call/call_accounts.h>
#include <weft/rpc/endpoint/link.h>

#include <algorithm>

namespace weft::rpc {

std::shared_ptr<Link> LinkTable::add(const std::shared_ptr<Link>& link, bool accepted) {
  MutexLock lock(mutex_);
  links_.emplace(link->number(), link);
  if (accepted) handshaking_.emplace(link->number(), link);
  if (handshaking_.size() <= max_handshakes_) return nullptr;
  return std::move(handshaking_.extract(handshaking_.begin()).mapped());
}

void LinkTable::handshake_over(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  handshaking_.erase(link->number());
}

void LinkTable::remove(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  links_.erase(link->number());
  handshaking_.erase(link->number());
}

void LinkTable::clear() {
  ByNumber links;  // destroyed without the mutex
  MutexLock lock(mutex_);
  links.swap(links_);
}

LinkTable::Links LinkTable::all() const {
  Links all;
  MutexLock lock(mutex_);
  for (const auto& [number, link] : links_) all.push_back(link);
  return all;
}

void LinkTable::forget(const AgentId& peer, const Error& error) {
  MutexLock lock(mutex_);
  forgotten_.add(peer, error);
}

std::optional<Error> LinkTable::forgotten(const AgentId& peer) const {
  MutexLock lock(mutex_);
  const auto* error = forgotten_.find(peer);
  return error != nullptr ? std::optional(*error) : std::nullopt;
}

void LinkTable::add_to(AgentCounts& counts) const {
  MutexLock lock(mutex_);
  counts.handshakes = handshaking_.size();
  counts.connections = static_cast<std::uint64_t>(
      std::count_if(links_.begin(), links_.end(), [](const auto& one) { return one.second->ready(); }));
}

}  // namespace weft::rpc

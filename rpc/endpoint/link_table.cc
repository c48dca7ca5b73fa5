#include <weft/rpc/endpoint/link_table.h>

#include <weft/rpc/call/call_accounts.h>
#include <weft/rpc/endpoint/link.h>

#include <algorithm>

namespace weft::rpc {

bool LinkTable::ByNumber::operator()(const std::shared_ptr<Link>& a, const std::shared_ptr<Link>& b) const {
  return a->number() < b->number();
}

std::shared_ptr<Link> LinkTable::add(const std::shared_ptr<Link>& link, bool accepted) {
  MutexLock lock(mutex_);
  links_.insert(link);
  if (accepted) handshaking_.insert(link);
  if (handshaking_.size() <= max_handshakes_) return nullptr;
  return std::move(handshaking_.extract(handshaking_.begin()).value());
}

void LinkTable::handshake_over(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  handshaking_.erase(link);
}

void LinkTable::remove(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  links_.erase(link);
  handshaking_.erase(link);
}

LinkTable::Links LinkTable::clear() {
  MutexLock lock(mutex_);
  const auto links = std::exchange(links_, {});
  return {links.begin(), links.end()};
}

LinkTable::Links LinkTable::all() const {
  MutexLock lock(mutex_);
  return {links_.begin(), links_.end()};
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
      std::count_if(links_.begin(), links_.end(), [](const auto& link) { return link->ready(); }));
}

}  // namespace weft::rpc

#include <weft/rpc/endpoint/link_table.h>

#include <weft/rpc/endpoint/link.h>

#include <algorithm>

namespace weft::rpc {
namespace {

constexpr std::size_t max_forgotten = 1024;

bool has_name(const std::map<AgentId, int>& ready, const std::string& name) {
  const auto first = ready.lower_bound(AgentId{name, 0});
  return first != ready.end() && first->first.name == name;
}

}  // namespace

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

void LinkTable::add_ready(const AgentId& peer) {
  MutexLock lock(mutex_);
  ++ready_[peer];
}

bool LinkTable::remove(const std::shared_ptr<Link>& link) {
  MutexLock lock(mutex_);
  if (links_.erase(link) != 0) requests_of_ended_links_ += link->requests_sent() + link->requests_received();
  if (!link->ready() || --ready_[link->peer()] != 0) return false;
  ready_.erase(link->peer());
  return true;
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

LinkTable::Links LinkTable::to(const AgentId& peer) const {
  Links links;
  MutexLock lock(mutex_);
  if (!ready_.contains(peer)) return links;
  std::copy_if(links_.begin(), links_.end(), std::back_inserter(links),
               [&](const auto& link) { return link->ready() && link->peer() == peer; });
  return links;
}

std::shared_ptr<Link> LinkTable::latest_to(const std::string& name) const {
  MutexLock lock(mutex_);
  if (!has_name(ready_, name)) return nullptr;  // the usual case when one of many connections ends
  const auto found = std::find_if(links_.rbegin(), links_.rend(), [&](const auto& link) {
    return link->usable() && link->peer().name == name;
  });
  return found == links_.rend() ? nullptr : *found;
}

std::shared_ptr<Link> LinkTable::with_lanes(const LaneKey& key) const {
  MutexLock lock(mutex_);
  const auto found = std::find_if(links_.begin(), links_.end(), [&](const auto& link) {
    return link->lanes()->offered() != 0 && link->lanes()->key() == key;
  });
  return found == links_.end() ? nullptr : *found;
}

bool LinkTable::is_linked(const AgentId& peer) const {
  MutexLock lock(mutex_);
  return ready_.contains(peer);
}

bool LinkTable::is_linked(const std::string& name) const {
  MutexLock lock(mutex_);
  return has_name(ready_, name);
}

bool LinkTable::keep_early_lane() {
  if (++early_lanes_ <= max_handshakes_) return true;
  --early_lanes_;
  return false;
}

void LinkTable::forget(const AgentId& peer, const Error& error) {
  MutexLock lock(mutex_);
  forgotten_.emplace_back(peer, error);
  if (forgotten_.size() > max_forgotten) forgotten_.pop_front();
}

std::optional<Error> LinkTable::forgotten(const AgentId& peer) const {
  MutexLock lock(mutex_);
  for (const auto& [gone, error] : forgotten_)
    if (gone == peer) return error;
  return std::nullopt;
}

LinkTable::Requests LinkTable::requests_with(const std::set<std::string>& names) const {
  Requests requests;
  MutexLock lock(mutex_);
  requests.ever = requests_of_ended_links_;
  for (const auto& link : links_) {
    const std::uint64_t sent = link->requests_sent(), received = link->requests_received();
    requests.ever += sent + received;
    if (!link->ready() || !names.contains(link->peer().name)) continue;
    requests.sent += sent;
    requests.received += received;
  }
  return requests;
}

void LinkTable::add_to(AgentCounts& counts) const {
  MutexLock lock(mutex_);
  counts.handshakes = handshaking_.size();
  for (const auto& [peer, links] : ready_) counts.connections += static_cast<std::uint64_t>(links);
}

}  // namespace weft::rpc

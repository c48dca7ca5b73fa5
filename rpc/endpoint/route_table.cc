#include <weft/rpc/endpoint/route_table.h>

#include <weft/rpc/endpoint/agent_core.h>
#include <weft/rpc/endpoint/sessions.h>
#include <weft/rpc/transport/address.h>

#include <algorithm>

namespace weft::rpc {

std::shared_ptr<Route> RouteTable::to_name(const std::string& name,
                                           const std::vector<std::string>& addresses) {
  std::vector<Address> known;
  known.reserve(addresses.size());
  for (const std::string& text : addresses) {
    Address address = Address::parse(text);
    // A wildcard would lead back to this host.
    if (!is_wildcard(address.host)) known.push_back(std::move(address));
  }
  return find_or_make(name, std::move(known));
}

std::shared_ptr<Route> RouteTable::find_or_make(const std::string& name, std::vector<Address> addresses) {
  MutexLock lock(mutex_);
  auto& route = routes_[name];
  if (route == nullptr) {
    route = std::make_shared<Route>(core_.shared_from_this(), core_.pick_loop(), name, std::move(addresses),
                                    false);
  } else if (!addresses.empty() && name != core_.id().name) {
    route->loop()->post([route = route, known = std::move(addresses)] { route->learn(known); });
  }
  return route;
}

std::shared_ptr<Route> RouteTable::to_address(const std::string& address) {
  const Address parsed = Address::parse(address);
  // An existing route keeps its addresses: it may also be the route of a name, whose addresses have changed.
  if (auto known = find(parsed.text())) return known;
  return find_or_make(parsed.text(), {parsed});
}

std::shared_ptr<Route> RouteTable::find(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = routes_.find(name);
  return found == routes_.end() ? nullptr : found->second;
}

RouteTable::Routes RouteTable::all() const {
  Routes all;
  MutexLock lock(mutex_);
  for (const auto& [name, route] : routes_)  // a route may have two names
    if (std::find(all.begin(), all.end(), route) == all.end()) all.push_back(route);
  return all;
}

void RouteTable::clear() {
  std::map<std::string, std::shared_ptr<Route>> routes;  // destroyed without the mutex, like `directory`
  FindAddresses directory;
  MutexLock lock(mutex_);
  routes.swap(routes_);
  directory.swap(directory_);
}

std::shared_ptr<Route> RouteTable::peer_connected(const std::string& name,
                                                  const std::vector<std::string>& addresses,
                                                  const std::shared_ptr<Route>& dialled,
                                                  const std::shared_ptr<Loop>& loop) {
  MutexLock lock(mutex_);
  addresses_[name] = addresses;
  auto& place = routes_[name];
  if (place == nullptr) place = dialled;
  if (place != nullptr) return place;
  auto route = place =
      std::make_shared<Route>(core_.shared_from_this(), loop, name, std::vector<Address>{}, true);
  if (routes_.size() < check_at_) return route;
  // Drops all unused routes. Some of them were in use by an attempt to connect when their peers were lost.
  std::erase_if(routes_, [this](const auto& entry) WEFT_REQUIRES(mutex_) {
    if (!is_unused(entry.first, entry.second)) return false;
    addresses_.erase(entry.first);
    return true;
  });
  check_at_ = std::max<std::size_t>(64, 2 * routes_.size());
  return route;
}

bool RouteTable::is_unused(const std::string& name, const std::shared_ptr<Route>& route) const {
  return route->is_to_visitor() && route.use_count() == 1 && core_.sessions().latest(name) == nullptr;
}

void RouteTable::drop_unused(const std::string& name) {
  MutexLock lock(mutex_);
  const auto found = routes_.find(name);
  if (found == routes_.end() || !is_unused(name, found->second)) return;
  routes_.erase(found);
  addresses_.erase(name);
}

std::vector<std::string> RouteTable::addresses_of(const std::string& name) const {
  MutexLock lock(mutex_);
  const auto found = addresses_.find(name);
  return found == addresses_.end() ? std::vector<std::string>{} : found->second;
}

void RouteTable::set_directory(FindAddresses find) {
  MutexLock lock(mutex_);
  directory_ = std::move(find);
}

void RouteTable::find_addresses(const std::string& name,
                                UniqueFunction<void(std::vector<Address>)> done) const {
  FindAddresses directory;
  {
    MutexLock lock(mutex_);
    directory = directory_;
  }
  if (!directory) return done({});
  directory(name, std::move(done));
}

}  // namespace weft::rpc

// AgentCore: its ways to peers: listeners, routes, links, and incarnations of peers that are over.
#include <weft/rpc/agent/agent_core.h>

#include <weft/rpc/agent/link.h>
#include <weft/rpc/agent/sessions.h>
#include <weft/rpc/transport/shm/companion.h>

#include <algorithm>

namespace weft::rpc {
namespace {

constexpr std::size_t max_forgotten = 1024;

}  // namespace

void AgentCore::listen() {
  const ExceptionSink::Handler dropped = [weak = weak_from_this()](const std::string& text) {
    const auto core = weak.lock();
    if (core == nullptr) return;
    AgentCounters::count(core->counters().exceptions_dropped);
    core->log(LogLevel::error,
              text + "; handle the error in the continuation, or return from it what it throws");
  };
  for (const auto& loop : loops_) loop->exceptions()->set_handler(dropped);
  if (const auto exceptions = handlers().exceptions()) exceptions->set_handler(dropped);
  const auto open = [this](const Address& address, const std::string& scheme) {
    Transport* way = transport(scheme);
    if (way == nullptr)
      throw Error(ErrorKind::invalid_argument, "this agent has no transport for " + address.text());
    if (options_.credentials != nullptr && !way->checks_credentials())
      throw Error(ErrorKind::permission_denied,
                  "listening on " + address.text() +
                      " would let in peers that prove nothing: this agent has credentials, and transport '" +
                      scheme + "' does not check them");
    return way->listen(
        address,
        [weak = weak_from_this()] {
          const auto core = weak.lock();
          return core == nullptr ? nullptr : core->pick_loop();
        },
        connection_options(), options_.insecure || options_.credentials != nullptr,
        [weak = weak_from_this()](std::shared_ptr<Connection> connection) {
          const auto core = weak.lock();
          if (core == nullptr || core->ended())
            return connection->close(Error(ErrorKind::shut_down, "shut down"));
          core->adopt(std::move(connection), nullptr);
        });
  };
  auto self = open(Address{self_scheme, {}, {}, id().name}, self_scheme);
  std::lock_guard lock(mutex_);
  routes_[id().name] = std::make_shared<Route>(shared_from_this(), pick_loop(), id().name,
                                               std::vector{Address{self_scheme, {}, {}, id().name}});
  routes_[id().name]->identify(id());
  listeners_.push_back(std::move(self));
  for (const std::string& text : options_.listen) {
    const Address address = Address::parse(text);
    listeners_.push_back(open(address, address.scheme));
  }
  if (!options_.same_host || options_.credentials != nullptr || transport("shm") == nullptr) return;
  for (const auto& listener : listeners_) {
    const auto companion = companion_of(listener->address());
    if (!companion) continue;
    try {
      companions_.push_back(open(*companion, companion->scheme));
    } catch (const Error& error) {
      log(LogLevel::debug,
          std::string("no shared memory beside ") + listener->address().text() + ": " + error.what(),
          {{log_fields::address, listener->address().text()}, {log_fields::kind, to_string(error.kind())}});
    }
  }
}

std::vector<std::string> AgentCore::addresses() const {
  std::vector<std::string> all;
  std::lock_guard lock(mutex_);
  for (const auto& listener : listeners_)
    if (listener->address().scheme != self_scheme) all.push_back(listener->address().text());
  return all;
}

std::vector<std::string> AgentCore::addresses_of(const std::string& name) const {
  std::lock_guard lock(mutex_);
  const auto found = peer_addresses_.find(name);
  return found == peer_addresses_.end() ? std::vector<std::string>{} : found->second;
}

std::shared_ptr<Route> AgentCore::route(const std::string& name, std::vector<std::string> addresses) {
  std::vector<Address> known;
  for (const std::string& text : addresses) known.push_back(Address::parse(text));
  std::lock_guard lock(mutex_);
  auto& route = routes_[name];
  if (route == nullptr) {
    route = std::make_shared<Route>(shared_from_this(), pick_loop(), name, std::move(known));
  } else if (!known.empty() && name != id().name) {
    route->loop()->post([route = route, known = std::move(known)] { route->learn(known); });
  }
  return route;
}

std::shared_ptr<Route> AgentCore::route_to(const std::string& address) {
  const Address parsed = Address::parse(address);
  std::lock_guard lock(mutex_);
  auto& route = routes_[parsed.text()];
  if (route == nullptr)
    route = std::make_shared<Route>(shared_from_this(), pick_loop(), parsed.text(), std::vector{parsed});
  return route;
}

std::vector<std::shared_ptr<Route>> AgentCore::all_routes() const {
  std::vector<std::shared_ptr<Route>> all;
  std::lock_guard lock(mutex_);
  for (const auto& [name, route] : routes_)  // one may have two names
    if (std::find(all.begin(), all.end(), route) == all.end()) all.push_back(route);
  return all;
}

std::vector<std::shared_ptr<Link>> AgentCore::all_links() const {
  std::lock_guard lock(mutex_);
  return {links_.begin(), links_.end()};
}

bool AgentCore::linked_to(const AgentId& peer) const {
  std::lock_guard lock(mutex_);
  return links_of_.contains(peer);
}

bool AgentCore::expects(const AgentId& peer) const {
  std::lock_guard lock(mutex_);
  return links_of_.contains(peer) || sessions_->is_absent(peer);
}

bool AgentCore::is_gone(const AgentId& peer) const { return sessions_->is_gone(peer); }

std::shared_ptr<Session> AgentCore::session_with(const AgentId& peer) const { return sessions_->find(peer); }

std::vector<std::shared_ptr<Session>> AgentCore::all_sessions() const { return sessions_->all(); }

const ProcessId& AgentCore::process() const { return sessions_->own_process(); }

bool AgentCore::is_on_this_host(const std::string& name) const {
  const auto peers = sessions_->absent(name);
  return std::any_of(peers.begin(), peers.end(),
                     [this](const AgentId& peer) { return sessions_->on_this_host(peer); });
}

std::vector<std::shared_ptr<Link>> AgentCore::links_to(const AgentId& peer) const {
  std::vector<std::shared_ptr<Link>> links;
  std::lock_guard lock(mutex_);
  if (!links_of_.contains(peer)) return links;
  std::copy_if(links_.begin(), links_.end(), std::back_inserter(links),
               [&](const auto& link) { return link->ready() && link->peer() == peer; });
  return links;
}

std::shared_ptr<Link> AgentCore::link_with(const LaneKey& key) const {
  std::lock_guard lock(mutex_);
  const auto found = std::find_if(links_.begin(), links_.end(), [&](const auto& link) {
    return link->lanes()->most() != 0 && link->lanes()->key() == key;
  });
  return found == links_.end() ? nullptr : *found;
}

bool AgentCore::keep_early_lane() {
  if (++early_lanes_ <= options_.max_handshakes) return true;
  --early_lanes_;
  return false;
}

Transport* AgentCore::transport(const std::string& scheme) const {
  const auto found = transports_.find(scheme);
  return found == transports_.end() ? nullptr : found->second.get();
}

void AgentCore::set_directory(FindAddresses find) {
  std::lock_guard lock(mutex_);
  directory_ = std::move(find);
}

void AgentCore::find_addresses(const std::string& name, UniqueFunction<void(std::vector<Address>)> done) {
  FindAddresses directory;
  {
    std::lock_guard lock(mutex_);
    directory = directory_;
  }
  if (!directory) return done({});
  directory(name, std::move(done));
}

void AgentCore::adopt(std::shared_ptr<Connection> connection, std::shared_ptr<Route> route) {
  const bool came_in = route == nullptr;
  std::shared_ptr<Link> link, oldest;
  {
    std::lock_guard lock(mutex_);
    link = std::make_shared<Link>(shared_from_this(), ++last_link_, std::move(connection), std::move(route));
    links_.insert(link);
    if (came_in) handshaking_.insert(link);
    // Who has been silent for longest makes room, so that a storm of such does not keep out who speaks.
    if (handshaking_.size() > options_.max_handshakes)
      oldest = std::move(handshaking_.extract(handshaking_.begin()).value());
  }
  if (oldest != nullptr) {
    AgentCounters::count(counters().connections_refused);
    const auto& loop = oldest->loop();
    loop->post([oldest] {
      if (!oldest->ready())
        oldest->close(Error(ErrorKind::resource_exhausted, "too many connections that say nothing"));
    });
    if (oldest == link) return;
  }
  link->open();
  if (ended()) link->close(Error(ErrorKind::shut_down, "this agent has shut down"));
}

void AgentCore::handshake_over(const std::shared_ptr<Link>& link) {
  std::lock_guard lock(mutex_);
  handshaking_.erase(link);
}

void AgentCore::link_ready(const std::shared_ptr<Link>& link, std::shared_ptr<Route> dialled,
                           const HelloInfo& hello) {
  const bool has_session = link->protocol().has(features::sessions) && link->peer() != id();
  bool visited = false;
  std::shared_ptr<Route> named;
  std::shared_ptr<Session> session;
  std::vector<Address> addresses;
  for (const std::string& text : hello.addresses) {
    try {
      addresses.push_back(Address::parse(text));
    } catch (const Error&) {
      log_some("malformed addresses", link->loop(), hello.name + " states a malformed address: " + text,
               {{log_fields::peer, hello.name}, {log_fields::address, text}});
    }
  }
  {
    std::lock_guard lock(mutex_);
    ++links_of_[link->peer()];
    if (has_session) session = sessions_->open(link->peer(), hello.process);
    AgentCounters::count(counters().connections_made);
    peer_addresses_[hello.name] = hello.addresses;
    auto& place = routes_[hello.name];
    if (place == nullptr) {
      place = dialled;
      if (place == nullptr) {
        place = std::make_shared<Route>(shared_from_this(), link->loop(), hello.name, std::vector<Address>{});
        place->set_to_visitor();
        visited = true;
      }
    }
    named = place;
    if (visited) forget_visitors();
  }
  if (has_session) link->join(std::move(session));
  // Of one name there is one incarnation at a time.
  for (const AgentId& peer : sessions_->absent(hello.name))
    lose(peer, Error(ErrorKind::peer_lost, to_string(link->peer()) + " took its place"));
  // A route that dialled runs on the link's loop.
  if (dialled != nullptr) dialled->link_up(link, true);
  if (hello.name == id().name) return;
  if (named != dialled) {
    auto tell = [named, link, addresses = std::move(addresses)] {
      named->learn(addresses);
      named->link_up(link, false);
    };
    named->loop()->running_here() ? tell() : named->loop()->post(std::move(tell));
  }
  for (const auto& hook : hooks().all()) hook->connection_made(link->peer());
}

bool AgentCore::is_linked(const std::string& name) const {
  const auto first = links_of_.lower_bound(AgentId{name, 0});
  return first != links_of_.end() && first->first.name == name;
}

// Its peer connected by itself, no incarnation of that name is left, and nobody here holds a way to it: names
// are cheap to make up.
bool AgentCore::is_forgotten(const std::string& name, const std::shared_ptr<Route>& route) const {
  return route->is_to_visitor() && route.use_count() == 1 && !is_linked(name) &&
         sessions_->absent(name).empty();
}

void AgentCore::forget_visitor(const std::string& name) {
  const auto found = routes_.find(name);
  if (found == routes_.end() || !is_forgotten(name, found->second)) return;
  routes_.erase(found);
  peer_addresses_.erase(name);
}

// Those that an attempt to connect still held when their peers were found to be gone.
void AgentCore::forget_visitors() {
  if (routes_.size() < forget_at_) return;
  std::erase_if(routes_, [this](const auto& entry) {
    if (!is_forgotten(entry.first, entry.second)) return false;
    peer_addresses_.erase(entry.first);
    return true;
  });
  forget_at_ = std::max<std::size_t>(64, 2 * routes_.size());
}

void AgentCore::link_ended(const std::shared_ptr<Link>& link, const std::shared_ptr<Route>& dialled,
                           const Error& reason, bool may_return) {
  std::vector<std::shared_ptr<Route>> routes;
  std::shared_ptr<Link> other;       // the latest to that name, of whichever incarnation
  std::shared_ptr<Route> back;       // to a peer that is absent
  std::shared_ptr<Session> session;  // with one that is gone
  bool gone = false;
  {
    std::lock_guard lock(mutex_);
    if (links_.erase(link) != 0)
      requests_of_ended_links_ += link->requests_sent() + link->requests_received();
    if (link->ready()) {
      if (dialled != nullptr) routes.push_back(dialled);
      if (const auto found = routes_.find(link->peer().name);
          found != routes_.end() && found->second != dialled)
        routes.push_back(found->second);
      if (--links_of_[link->peer()] == 0) {
        links_of_.erase(link->peer());
        gone = link->peer() != id();
        if (gone && may_return && !ended() && sessions_->begin_absence(link->peer(), reason, link->loop())) {
          gone = false;
          if (const auto found = routes_.find(link->peer().name); found != routes_.end())
            back = found->second;
        } else if (gone && link->had_session()) {
          session = sessions_->close(link->peer());
          gone = session != nullptr;  // else the layers know
        }
      }
      if (!routes.empty() && is_linked(link->peer().name)) {
        const auto found = std::find_if(links_.rbegin(), links_.rend(), [&](const auto& left) {
          return left->usable() && left->peer().name == link->peer().name;
        });
        if (found != links_.rend()) other = *found;
      }
    }
  }
  for (const auto& route : routes) {
    if (route->loop()->running_here()) {
      route->link_down(link, other);
    } else {
      route->loop()->post([route, link, other] { route->link_down(link, other); });
    }
  }
  if (dialled != nullptr && !link->ready()) dialled->dial_failed(reason);
  if (back != nullptr) {
    log(LogLevel::info, link->peer().name + " is absent: " + reason.what(),
        {{log_fields::peer, link->peer().name}, {log_fields::kind, to_string(reason.kind())}});
    back->rejoin();
  }
  routes.clear();
  if (session != nullptr) session->end(reason, cause_of_ends());
  if (link->ready()) report_gone(*link, gone, reason);
  if (link->ready() && gone) {
    std::lock_guard lock(mutex_);
    forget_visitor(link->peer().name);
  }
}

void AgentCore::lose(const AgentId& peer, const Error& reason) {
  if (const auto session = sessions_->close(peer)) end_session(session, reason);
}

void AgentCore::end_session(const std::shared_ptr<Session>& session, const Error& reason) {
  const AgentId& peer = session->peer();
  std::shared_ptr<Route> route;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = routes_.find(peer.name); found != routes_.end()) route = found->second;
  }
  if (route != nullptr) route->end_of(peer);
  route = nullptr;
  session->end(reason, cause_of_ends());
  for (const auto& link : links_to(peer)) link->loop()->post([link] { link->cancel_resumable(); });
  if (ended()) return;
  for (const auto& hook : hooks().all()) hook->peer_gone(peer, reason);
  std::lock_guard lock(mutex_);
  forget_visitor(peer.name);
}

void AgentCore::refused_by(const std::string& name, const Error& reason) {
  for (const AgentId& peer : sessions_->absent(name))
    lose(peer, Error(ErrorKind::peer_lost, peer.name + " no longer listens: " + reason.what()));
}

void AgentCore::forget(const AgentId& peer, const std::string& reason) {
  const Error error(ErrorKind::lease_lost, to_string(peer) + " was taken for dead: " + reason);
  std::vector<std::shared_ptr<Link>> links;
  {
    std::lock_guard lock(mutex_);
    forgotten_.emplace_back(peer, error);
    if (forgotten_.size() > max_forgotten) forgotten_.pop_front();
    links.assign(links_.begin(), links_.end());
  }
  forget_way(peer);
  // Who is shaking hands meanwhile asks forgotten() afterwards.
  for (const auto& link : links)
    link->loop()->post([link, peer, error] {
      if (link->ready() && link->peer() == peer) link->expel(error);
    });
  if (sessions_->is_absent(peer)) lose(peer, error);
  for (const auto& hook : hooks().all()) hook->peer_forgotten(peer, error);
}

void AgentCore::forget_way(const AgentId& peer) {
  std::shared_ptr<Route> route;
  {
    std::lock_guard lock(mutex_);
    if (const auto found = routes_.find(peer.name); found != routes_.end()) route = found->second;
  }
  if (route != nullptr) route->loop()->post([route, peer] { route->forget(peer); });
}

std::optional<Error> AgentCore::forgotten(const AgentId& peer) const {
  std::lock_guard lock(mutex_);
  for (const auto& [gone, error] : forgotten_)
    if (gone == peer) return error;
  return std::nullopt;
}

void AgentCore::peer_leaving(const AgentId& peer) {
  log(LogLevel::debug, peer.name + " is leaving", {{log_fields::peer, peer.name}});
}

void AgentCore::peer_world_failed(const AgentId& peer, const Error& error) {
  for (const auto& hook : hooks().all()) hook->peer_world_failed(peer, error);
}

void AgentCore::report_gone(const Link& link, bool last, const Error& reason) {
  for (const auto& hook : hooks().all()) hook->connection_gone(link.number(), link.peer(), reason);
  if (!last) return;
  for (const auto& hook : hooks().all()) hook->peer_gone(link.peer(), reason);
}

}  // namespace weft::rpc

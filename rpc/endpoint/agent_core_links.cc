// AgentCore: changes of connections and peers.
#include <weft/rpc/endpoint/agent_core.h>

#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>

namespace weft::rpc {
void AgentCore::adopt(std::shared_ptr<Connection> connection, std::shared_ptr<Route> route) {
  const bool accepted = route == nullptr;
  const auto link = std::make_shared<Link>(shared_from_this(), links_.next_number(), std::move(connection),
                                           std::move(route));
  if (const auto oldest = links_.add(link, accepted)) {
    AgentCounters::count(counters().connections_refused);
    oldest->loop()->post([oldest, limit = options_.max_handshakes] {
      if (!oldest->ready())
        oldest->close(Error(ErrorKind::resource_exhausted, "too many pending handshakes: the limit is " +
                                                               std::to_string(limit) +
                                                               " (AgentOptions::max_handshakes)"));
    });
    if (oldest == link) return;
  }
  link->open();
  if (ended()) link->close(Error(ErrorKind::shut_down, "this agent has shut down"));
}

std::shared_ptr<Session> AgentCore::admit(const AgentId& peer, const Protocol& protocol,
                                          const std::string& identity, const ProcessId& process) {
  MutexLock lock(peers_mutex_);
  std::shared_ptr<Session> session;
  if (peer != id()) session = sessions_->open(peer, identity, process, protocol.has(features::sessions));
  links_.add_ready(peer);
  return session;
}

void AgentCore::link_ready(const std::shared_ptr<Link>& link, const std::shared_ptr<Route>& dialled,
                           const HelloInfo& hello) {
  std::vector<Address> addresses;
  std::vector<std::string> texts;
  for (const std::string& text : hello.addresses) {
    try {
      Address address = Address::parse(text);
      if (!is_on_host_of_peer(address, link->hosts())) continue;
      addresses.push_back(std::move(address));
      texts.push_back(text);
    } catch (const Error&) {
      log().write_some("malformed addresses", link->loop(),
                       hello.name + " states a malformed address: " + text,
                       {{log_fields::peer, hello.name}, {log_fields::address, text}});
    }
  }
  AgentCounters::count(counters().connections_made);
  const auto named = routes_.peer_connected(hello.name, texts, dialled, link->loop());
  if (link->protocol().has(features::sessions) && link->peer() != id()) link->join();
  // A name has one incarnation at a time.
  for (const AgentId& peer : sessions_->absent(hello.name))
    lose(peer, Error(ErrorKind::peer_lost, to_string(link->peer()) + " has replaced it"));
  // A route that dialled runs on the link's loop.
  if (dialled != nullptr) dialled->link_up(link, true);
  if (hello.name == id().name) return;
  if (named != dialled)
    named->loop()->dispatch([named, link, addresses = std::move(addresses)] {
      named->learn(addresses);
      named->link_up(link, false);
    });
  for (const auto& hook : hooks().all()) hook->connection_made(link->peer());
}

bool AgentCore::expects(const AgentId& peer) const {
  MutexLock lock(peers_mutex_);
  return links_.is_linked(peer) || sessions_->is_absent(peer);
}

bool AgentCore::is_expected(const std::string& name) const {
  MutexLock lock(peers_mutex_);
  return links_.is_linked(name) || !sessions_->absent(name).empty();
}

void AgentCore::link_ended(const std::shared_ptr<Link>& link, const std::shared_ptr<Route>& dialled,
                           const Error& reason, bool may_return) {
  const bool ready = link->ready();
  std::shared_ptr<Session> session;  // the session with the peer, if the peer is gone
  bool gone = false, absent = false;
  {
    MutexLock lock(peers_mutex_);
    gone = links_.remove(link) && link->peer() != id();
    if (gone && may_return && !ended()) {
      absent = sessions_->begin_absence(link->peer(), reason, link->loop());
      gone = !absent;
    }
    if (gone) {
      session = sessions_->close(link->peer());
      // If null, the layers have been notified before.
      if (link->had_session()) gone = session != nullptr;
    }
  }
  if (!ready) {
    if (dialled != nullptr) dialled->dial_failed(reason);
    return;
  }
  const AgentId& peer = link->peer();
  auto named = routes_.find(peer.name);
  const auto other = dialled != nullptr || named != nullptr ? links_.latest_to(peer.name) : nullptr;
  if (dialled != nullptr)
    dialled->loop()->dispatch([dialled, link, other] { dialled->link_down(link, other); });
  if (named != nullptr && named != dialled)
    named->loop()->dispatch([named, link, other] { named->link_down(link, other); });
  if (absent && named != nullptr) {
    log().write(LogLevel::info, peer.name + " is absent: " + reason.what(),
                {{log_fields::peer, peer.name}, {log_fields::kind, to_string(reason.kind())}});
    named->rejoin();
  }
  named = nullptr;
  if (session != nullptr) session->end(reason, job_error_of_ends());
  for (const auto& hook : hooks().all()) hook->connection_gone(link->number(), peer, reason);
  if (!gone) return;
  for (const auto& hook : hooks().all()) hook->peer_gone(peer, reason);
  routes_.drop_unused(peer.name);
}

void AgentCore::lose(const AgentId& peer, const Error& reason) {
  if (const auto session = sessions_->close(peer)) end_session(session, reason);
}

void AgentCore::end_session(const std::shared_ptr<Session>& session, const Error& reason) {
  const AgentId& peer = session->peer();
  if (const auto route = routes_.find(peer.name)) route->end_of(peer);
  session->end(reason, job_error_of_ends());
  for (const auto& link : links_.to(peer)) link->loop()->post([link] { link->cancel_resumable(); });
  if (ended()) return;
  for (const auto& hook : hooks().all()) hook->peer_gone(peer, reason);
  routes_.drop_unused(peer.name);
}

void AgentCore::forget(const AgentId& peer, const std::string& reason) {
  const Error error(ErrorKind::lease_lost, to_string(peer) + " was declared dead: " + reason);
  links_.forget(peer, error);
  if (const auto route = routes_.find(peer.name)) route->forget(peer);
  // A link whose handshake completes later calls LinkTable::forgotten() itself.
  for (const auto& link : links_.all())
    link->loop()->post([link, peer, error] {
      if (link->ready() && link->peer() == peer) link->expel(error);
    });
  if (sessions_->is_absent(peer)) lose(peer, error);
  for (const auto& hook : hooks().all()) hook->peer_forgotten(peer, error);
}

}  // namespace weft::rpc

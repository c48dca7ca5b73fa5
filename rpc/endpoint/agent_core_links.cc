// AgentCore: changes of connections and peers.
#include <weft/rpc/endpoint/agent_core.h>

#include <weft/rpc/endpoint/link.h>
#include <weft/rpc/endpoint/sessions.h>

namespace weft::rpc {

void AgentCore::adopt(std::shared_ptr<Connection> connection, std::shared_ptr<Route> route,
                      std::shared_ptr<Link> whole, std::uint64_t lane_key) {
  const bool accepted = route == nullptr && whole == nullptr;
  const auto link = std::make_shared<Link>(shared_from_this(), links_.next_number(), std::move(connection),
                                           std::move(route), std::move(whole), lane_key);
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

std::shared_ptr<Session> AgentCore::session_with(const AgentId& peer, const std::shared_ptr<Loop>& loop,
                                                 const HelloInfo& hello, const Protocol& protocol,
                                                 const std::string& identity) {
  const bool is_kept = protocol.has(features::sessions) && peer != id();
  return sessions_->open(peer, identity, hello.process, is_kept, [&](std::uint64_t number) {
    return std::make_shared<Session>(shared_from_this(), peer, loop, hello, is_kept, number);
  });
}

void AgentCore::link_ready(const std::shared_ptr<Link>& link, const std::shared_ptr<Session>& session,
                           const std::shared_ptr<Route>& dialled, const HelloInfo& hello) {
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
  session->add(link);
  // A name has one incarnation at a time.
  for (const AgentId& peer : sessions_->absent(hello.name))
    if (peer != link->peer())
      lose(peer, Error(ErrorKind::peer_lost, to_string(link->peer()) + " has replaced it"));
  // A route that dialled runs on the link's loop.
  if (dialled != nullptr) dialled->connected(session, true);
  if (hello.name == id().name || named == dialled) return;
  named->loop()->dispatch([named, session, addresses = std::move(addresses)] {
    named->learn(addresses);
    named->connected(session, false);
  });
}

void AgentCore::link_ended(const std::shared_ptr<Link>& link, const std::shared_ptr<Route>& dialled,
                           const Error& reason) {
  links_.remove(link);
  if (!link->ready() && dialled != nullptr) dialled->dial_failed(reason);
}

bool AgentCore::session_connected(const Session& session) {
  if (!sessions_->connected(session)) return false;
  if (session.peer() != id())
    for (const auto& hook : hooks().all()) hook->connection_made(session.peer());
  return true;
}

bool AgentCore::session_absent(const Session& session, const std::shared_ptr<Loop>& loop,
                               const Error& reason) {
  const AgentId& peer = session.peer();
  if (ended() || links_.forgotten(peer) || !sessions_->begin_absence(session, reason, loop)) return false;
  log().write(LogLevel::info, peer.name + " is absent: " + reason.what(),
              {{log_fields::peer, peer.name}, {log_fields::kind, to_string(reason.kind())}});
  if (const auto named = routes_.find(peer.name)) named->rejoin();
  return true;
}

void AgentCore::session_lost(const std::shared_ptr<Session>& session, const Error& reason) {
  end_session(session, reason, sessions_->close(*session));
}

void AgentCore::lose(const AgentId& peer, const Error& reason) {
  if (const auto session = sessions_->close(peer)) end_session(session, reason, true);
}

void AgentCore::end_session(const std::shared_ptr<Session>& session, const Error& reason, bool is_gone) {
  session->run([self = shared_from_this(), session, reason, is_gone] {
    const AgentId& peer = session->peer();
    if (is_gone)
      if (const auto route = self->routes_.find(peer.name)) route->end_of(peer);
    session->end(reason, self->job_error_of_ends());
    if (!is_gone || self->ended()) return;
    for (const auto& hook : self->hooks().all()) hook->peer_gone(peer, reason);
    self->routes_.drop_unused(peer.name);
  });
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

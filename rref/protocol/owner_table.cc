#include <weft/rref/protocol/owner_table.h>

#include <stdexcept>

namespace weft::rref::protocol {

OwnerTable::OwnerTable(rpc::AgentId self) : self_(std::move(self)) {}

// --- Small steps ---

OwnerTable::Peer& OwnerTable::watch(const rpc::AgentId& agent, Actions& out) {
  auto [peer, is_new] = peers_.try_emplace(agent.incarnation);
  if (is_new && agent.incarnation != self_.incarnation) out.push_back(WatchAgent{agent});
  return peer->second;
}

// Takes a birth's number, which can be taken once. Births of unwatched agents are settled:
// those agents were dropped.
bool OwnerTable::settle(const ForkId& fork) {
  auto peer = peers_.find(fork.origin);
  return peer != peers_.end() && peer->second.births.insert(fork.number - birth_base(self_.incarnation));
}

bool OwnerTable::may_still_be_created(const RRefId& rref) const {
  if (rref.origin == self_.incarnation || fenced(rref.origin)) return false;
  auto peer = peers_.find(rref.origin);
  return peer == peers_.end() || !peer->second.births.contains(rref.number - birth_base(self_.incarnation));
}

OwnerTable::Object* OwnerTable::find(const RRefId& rref) {
  auto object = objects_.find(rref);
  return object == objects_.end() ? nullptr : &object->second;
}

const OwnerTable::Object* OwnerTable::find(const RRefId& rref) const {
  auto object = objects_.find(rref);
  return object == objects_.end() ? nullptr : &object->second;
}

OwnerTable::Object& OwnerTable::known(const RRefId& rref) {
  Object* object = find(rref);
  if (object == nullptr) throw std::logic_error("OwnerTable: no object " + to_string(rref));
  return *object;
}

// An unknown object is either gone, or somebody was faster than its creator: then it is expected.
OwnerTable::Object* OwnerTable::find_or_expect(const RRefId& rref, const rpc::AgentId& creator,
                                               Actions& out) {
  if (Object* object = find(rref)) return object;
  if (creator.incarnation != rref.origin || !may_still_be_created(rref)) return nullptr;
  watch(creator, out);  // whose death, like its fence, ends the expectation
  Object& object = objects_[rref];
  object.creator = creator;
  return &object;
}

Standing OwnerTable::standing(const Object* object, const ForkId& fork) {
  if (object == nullptr || !object->forks.contains(fork)) return {Verdict::ended, {}};
  return {Verdict::registered, object->failure};
}

void OwnerTable::fail(const RRefId& rref, Object& object, const std::string& failure, Actions& out) {
  object.state = ObjectState::failed;
  object.failure = failure.empty() ? "the creation failed" : failure;
  for (const auto& [id, fork] : object.forks) {
    out.push_back(Send<CreationFailed>{fork.user, {rref, id, object.failure}});
  }
  if (object.holds > 0) out.push_back(ObjectFailed{rref, object.failure});
}

// Ends an object that nobody holds. A running constructor is left to its end; an expectation just lapses,
// because the creation makes a new entry should it still come.
void OwnerTable::collect(const RRefId& rref, Actions& out) {
  const Object* object = find(rref);
  if (object == nullptr || object->state == ObjectState::creating) return;
  if (object->holds > 0 || !object->forks.empty()) return;
  if (object->state != ObjectState::expected) out.push_back(DeleteObject{rref});
  objects_.erase(rref);
}

// --- Creation ---

RRefId OwnerTable::create_local(ObjectInfo info, ObjectState state) {
  const RRefId rref{self_.incarnation, birth_base(self_.incarnation) + next_local_++};
  Object& object = objects_[rref];
  object.info = std::move(info);
  object.state = state;
  object.creator = self_;
  object.holds = 1;
  return rref;
}

Standing OwnerTable::begin_create(const rpc::AgentId& creator, const RRefId& rref, ObjectInfo info,
                                  Actions& out) {
  if (fenced(creator.incarnation)) return {Verdict::lease_lost, {}};
  if (rref.origin != creator.incarnation) return {Verdict::ended, {}};
  watch(creator, out);
  if (!settle(creators_fork(rref))) return {Verdict::ended, {}};  // a duplicate, or fenced meanwhile
  Object& object = objects_[rref];                                // perhaps expected, with forks and holds
  object.info = std::move(info);
  object.state = ObjectState::creating;
  object.creator = creator;
  object.forks.emplace(creators_fork(rref), Fork{creator});
  return {};
}

void OwnerTable::finish_create(const RRefId& rref, const std::optional<std::string>& failure, Actions& out) {
  Object& object = known(rref);
  if (object.state != ObjectState::creating) {
    throw std::logic_error("OwnerTable: no creation of " + to_string(rref) + " is running");
  }
  if (failure) {
    fail(rref, object, *failure, out);
  } else {
    object.state = ObjectState::live;
    if (object.holds > 0) out.push_back(ObjectReady{rref});
  }
  collect(rref, out);
}

// --- Holds ---

void OwnerTable::hold(const RRefId& rref) {
  Object& object = known(rref);
  if (object.holds == 0) throw std::logic_error("OwnerTable: nobody here holds " + to_string(rref));
  ++object.holds;
}

void OwnerTable::unhold(const RRefId& rref, Actions& out) {
  Object& object = known(rref);
  if (object.holds == 0) throw std::logic_error("OwnerTable: nobody here holds " + to_string(rref));
  --object.holds;
  collect(rref, out);
}

Access OwnerTable::acquire(const RRefId& rref, const rpc::AgentId& creator, Actions& out) {
  Object* object = find_or_expect(rref, creator, out);
  if (object == nullptr) return Access::gone;
  if (object->state == ObjectState::failed) return Access::failed;
  ++object->holds;
  return object->state == ObjectState::live ? Access::ready : Access::waiting;
}

Access OwnerTable::begin_request(const rpc::AgentId& from, const Handover& target, Actions& out) {
  if (fenced(from.incarnation)) return Access::lease_lost;
  return acquire(target.rref, target.creator, out);
}

// The sender keeps its own fork for this hand-over as for any other, under the birth that is settled here.
Access OwnerTable::receive(const rpc::AgentId& from, const Handover& handover, Actions& out) {
  if (handover.fork.origin != from.incarnation) return Access::gone;
  if (fenced(from.incarnation)) {
    // So that it asks about the fork, and learns of its own loss.
    out.push_back(Send<ChildSettled>{from, {handover.fork, false}});
    return Access::lease_lost;
  }
  watch(from, out);
  out.push_back(Send<ChildSettled>{from, {handover.fork, true}});
  if (!settle(handover.fork)) return Access::gone;  // a duplicate, or fenced meanwhile
  return acquire(handover.rref, handover.creator, out);
}

// --- Lending ---

std::optional<Handover> OwnerTable::lend(const RRefId& rref, const rpc::AgentId& user, Actions& out) {
  Object& object = known(rref);
  if (fenced(user.incarnation)) return std::nullopt;
  const ForkId fork{self_.incarnation, lend_base(user.incarnation) + watch(user, out).next_lend++};
  object.forks.emplace(fork, Fork{user, Transit::under_way});
  return Handover{rref, fork, self_, object.creator, object.state == ObjectState::live};
}

void OwnerTable::lend_ended(const Handover& lent, Outcome outcome, Actions& out) {
  Object* object = find(lent.rref);
  if (object == nullptr) return;
  auto fork = object->forks.find(lent.fork);
  if (fork == object->forks.end()) return;  // the user had it and is done, or was dropped
  if (outcome == Outcome::accepted) {
    fork->second.transit = Transit::arrived;
    return;
  }
  // A fork that was not sent goes at once, but its number is a gap in what the user remembers:
  // the probe closes it.
  if (fork->second.transit != Transit::probing)
    out.push_back(Send<ForkProbe>{fork->second.user, {lent.rref, lent.fork}});
  fork->second.transit = Transit::probing;
  if (outcome == Outcome::not_sent) {
    object->forks.erase(fork);
    collect(lent.rref, out);
  }
}

void OwnerTable::probe_answered(const ForkProbe& probe, const ProbeReply& reply, Actions& out) {
  Object* object = find(probe.rref);
  if (object == nullptr) return;
  auto fork = object->forks.find(probe.fork);
  if (fork == object->forks.end()) return;
  if (reply.held) {
    fork->second.transit = Transit::arrived;
  } else {
    object->forks.erase(fork);
    collect(probe.rref, out);
  }
}

// --- Messages ---

Standing OwnerTable::on_fork_add(const rpc::AgentId& from, const ForkAdd& message, Actions& out) {
  if (fenced(from.incarnation)) return {Verdict::lease_lost, {}};
  if (message.fork.origin == self_.incarnation) {
    // Lent before the object was live: the user asks how the creation went, and so tells
    // that the fork arrived.
    Object* object = find(message.rref);
    if (object == nullptr) return {Verdict::ended, {}};
    auto fork = object->forks.find(message.fork);
    if (fork == object->forks.end() || fork->second.user != from) return {Verdict::ended, {}};
    fork->second.transit = Transit::arrived;
    return standing(object, message.fork);
  }
  if (message.parent.incarnation != message.fork.origin) return {Verdict::ended, {}};
  watch(from, out);
  if (!fenced(message.parent.incarnation)) watch(message.parent, out);
  if (!settle(message.fork)) return standing(find(message.rref), message.fork);
  Object* object = find_or_expect(message.rref, message.creator, out);
  if (object == nullptr) return {Verdict::ended, {}};
  object->forks.emplace(message.fork, Fork{from});
  return standing(object, message.fork);
}

Standing OwnerTable::on_fork_delete(const rpc::AgentId& from, const ForkDelete& message, Actions& out) {
  if (fenced(from.incarnation)) return {Verdict::lease_lost, {}};
  if (Object* object = find(message.rref)) {
    auto fork = object->forks.find(message.fork);
    if (fork != object->forks.end() && fork->second.user == from) {
      object->forks.erase(fork);
      collect(message.rref, out);
    }
  }
  return {Verdict::ended, {}};
}

Standing OwnerTable::on_fork_fence(const rpc::AgentId& from, const ForkFence& message, Actions& out) {
  if (fenced(from.incarnation)) return {Verdict::lease_lost, {}};
  if (message.fork.origin != from.incarnation) return {Verdict::ended, {}};
  watch(from, out);
  const bool never = settle(message.fork);
  Object* object = find(message.rref);
  if (!never) return standing(object, message.fork);
  if (object != nullptr && message.fork == creators_fork(message.rref)) {
    fail(message.rref, *object, "the creation never reached the owner", out);
    collect(message.rref, out);
  }
  return {Verdict::ended, {}};
}

// --- Peers ---

void OwnerTable::connection_ended(const rpc::AgentId& peer, Actions& out) {
  for (auto& [rref, object] : objects_) {
    for (auto& [id, fork] : object.forks) {
      if (fork.transit != Transit::under_way || fork.user != peer) continue;
      fork.transit = Transit::probing;
      out.push_back(Send<ForkProbe>{peer, {rref, id}});
    }
  }
}

// Walks all forks: deaths are rare, and an index by user would have to be kept on every hand-over.
void OwnerTable::drop_agent(const rpc::AgentId& agent, Actions& out) {
  if (!fenced_.insert(agent.incarnation).second) return;
  peers_.erase(agent.incarnation);
  std::vector<RRefId> touched;
  for (auto& [rref, object] : objects_) {
    const std::size_t ended = std::erase_if(
        object.forks, [&](const auto& entry) { return entry.second.user.incarnation == agent.incarnation; });
    const bool orphan = object.state == ObjectState::expected && rref.origin == agent.incarnation;
    if (orphan)
      fail(rref, object, "its creator " + to_string(agent) + " was lost before it was created", out);
    if (ended > 0 || orphan) touched.push_back(rref);
  }
  for (const RRefId& rref : touched) collect(rref, out);
}

// --- Reports ---

std::vector<LiveObject> OwnerTable::live_objects() const {
  std::vector<LiveObject> report;
  for (const auto& [rref, object] : objects_) {
    LiveObject& entry = report.emplace_back();
    entry.id = rref;
    entry.info = object.info;
    entry.state = object.state;
    entry.holds = object.holds;
    for (const auto& [id, fork] : object.forks) entry.forks.emplace_back(id, fork.user);
  }
  return report;
}

bool OwnerTable::has_fork(const RRefId& rref, const ForkId& fork) const {
  const Object* object = find(rref);
  return object != nullptr && object->forks.contains(fork);
}

std::string OwnerTable::failure(const RRefId& rref) const {
  const Object* object = find(rref);
  return object == nullptr ? std::string() : object->failure;
}

std::size_t OwnerTable::birth_ranges() const {
  std::size_t ranges = 0;
  for (const auto& [incarnation, peer] : peers_) ranges += peer.births.ranges();
  return ranges;
}

}  // namespace weft::rref::protocol

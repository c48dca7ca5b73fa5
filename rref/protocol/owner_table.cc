#include <weft/rref/protocol/owner_table.h>

#include <stdexcept>

namespace weft::rref::protocol {

OwnerTable::OwnerTable(rpc::AgentId self) : self_(std::move(self)) {}

// --- Small steps ---

OwnerTable::Peers::value_type& OwnerTable::watch(const rpc::AgentId& agent, Actions& out) {
  auto [peer, is_new] = peers_.try_emplace(agent);
  if (is_new && agent != self_) out.push_back(WatchAgent{agent});
  return *peer;
}

// Settles the birth of the fork by `origin`. Returns false if the birth was settled before. All births of an
// unwatched agent are settled, because that agent was dropped.
bool OwnerTable::settle(const rpc::AgentId& origin, const ForkId& fork) {
  auto peer = peers_.find(origin);
  return peer != peers_.end() && peer->second.births.insert(fork.number - birth_base(self_.incarnation));
}

bool OwnerTable::may_still_be_created(const RRefId& rref, const rpc::AgentId& creator) const {
  if (creator.incarnation != rref.origin || creator == self_ || is_dropped(creator)) return false;
  auto peer = peers_.find(creator);
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

// If the object is unknown, it is gone, or a message about it arrived before the message of its creator. In
// the second case, the object is expected.
OwnerTable::Object* OwnerTable::find_or_expect(const RRefId& rref, const rpc::AgentId& creator,
                                               Actions& out) {
  if (Object* object = find(rref)) return object;
  if (!may_still_be_created(rref, creator)) return nullptr;
  watch(creator, out);  // the death of the creator, like a fence, ends the expectation
  return &add(rref, creator);
}

OwnerTable::Object& OwnerTable::add(const RRefId& rref, const rpc::AgentId& creator) {
  Object& object = objects_[rref];
  if (object.kind == nullptr) set_kind(object, {creator, {}, {}});
  return object;
}

void OwnerTable::describe(Object& object, const rpc::AgentId& creator, ObjectInfo info) {
  Kind kind{creator, std::move(info.type), std::move(info.site)};
  forget_kind(object);
  set_kind(object, std::move(kind));
  object.made = info.made;
}

void OwnerTable::set_kind(Object& object, Kind kind) {
  object.kind = &*kinds_.try_emplace(std::move(kind)).first;
  ++object.kind->second;
}

void OwnerTable::forget_kind(Object& object) {
  if (--object.kind->second == 0) kinds_.erase(kinds_.find(object.kind->first));
}

Standing OwnerTable::standing(const RRefId& rref, const ForkId& fork) const {
  const Object* object = find(rref);
  if (object == nullptr || !object->forks.contains(fork)) return {Verdict::ended, {}};
  return {Verdict::registered, failure(rref)};
}

void OwnerTable::fail(const RRefId& rref, Object& object, const std::string& failure, Actions& out) {
  object.state = ObjectState::failed;
  std::string& text = failures_[rref];
  text = failure.empty() ? "the creation failed" : failure;
  for (const Fork& fork : object.forks)
    out.push_back(Send<CreationFailed>{*fork.user, {rref, fork.id, text}});
  if (object.holds > 0) out.push_back(ObjectFailed{rref, text});
}

// Ends an object without references. A running constructor is not interrupted; an expectation lapses, and a
// creation that still arrives makes a new entry.
void OwnerTable::collect(const RRefId& rref, Actions& out) {
  Object* object = find(rref);
  if (object == nullptr || object->state == ObjectState::creating) return;
  if (object->holds > 0 || !object->forks.empty()) return;
  if (object->state != ObjectState::expected) out.push_back(DeleteObject{rref});
  if (object->state == ObjectState::failed) failures_.erase(rref);
  forget_kind(*object);
  objects_.erase(rref);
}

// --- Creation ---

RRefId OwnerTable::create_local(ObjectInfo info, ObjectState state) {
  const RRefId rref{self_.incarnation, birth_base(self_.incarnation) + next_local_++};
  Object& object = add(rref, self_);
  describe(object, self_, std::move(info));
  object.state = state;
  object.holds = 1;
  return rref;
}

Standing OwnerTable::begin_create(const rpc::AgentId& creator, const RRefId& rref, ObjectInfo info,
                                  Actions& out) {
  if (is_dropped(creator)) return {Verdict::lease_lost, {}};
  if (rref.origin != creator.incarnation) return {Verdict::ended, {}};
  const rpc::AgentId& user = watch(creator, out).first;
  if (!settle(creator, creators_fork(rref))) return {Verdict::ended, {}};  // a duplicate, or fenced meanwhile
  // Possibly expected, with forks and holds. An object that exists belongs to an earlier agent that had the
  // same incarnation.
  const Object* other = find(rref);
  if (other != nullptr && other->state != ObjectState::expected) return {Verdict::ended, {}};
  Object& object = add(rref, creator);
  describe(object, creator, std::move(info));
  object.state = ObjectState::creating;
  if (!object.forks.contains(creators_fork(rref))) object.forks.add({creators_fork(rref), &user});
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
  if (object.holds == 0) throw std::logic_error("OwnerTable: no hold on " + to_string(rref));
  ++object.holds;
}

void OwnerTable::unhold(const RRefId& rref, Actions& out) {
  Object& object = known(rref);
  if (object.holds == 0) throw std::logic_error("OwnerTable: no hold on " + to_string(rref));
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
  if (is_dropped(from)) return Access::lease_lost;
  return acquire(target.rref, target.creator, out);
}

// As for any other hand-over, the sender keeps its own fork until the birth of the child is settled. This
// function settles that birth.
Access OwnerTable::receive(const rpc::AgentId& from, const Handover& handover, Actions& out) {
  if (handover.fork.origin != from.incarnation) return Access::gone;
  if (is_dropped(from)) {
    // The sender then asks about the fork, and learns that it was dropped.
    out.push_back(Send<ChildSettled>{from, {handover.fork, false}});
    return Access::lease_lost;
  }
  watch(from, out);
  out.push_back(Send<ChildSettled>{from, {handover.fork, true}});
  if (!settle(from, handover.fork)) return Access::gone;  // a duplicate, or fenced meanwhile
  return acquire(handover.rref, handover.creator, out);
}

// --- Lending ---

std::optional<Handover> OwnerTable::lend(const RRefId& rref, const rpc::AgentId& user, Actions& out) {
  Object& object = known(rref);
  if (is_dropped(user)) return std::nullopt;
  auto& [id, peer] = watch(user, out);
  const ForkId fork{self_.incarnation, lend_base(user.incarnation) + peer.next_lend++};
  if (object.forks.contains(fork)) return std::nullopt;  // lent to another agent with the same incarnation
  object.forks.add({fork, &id, Transit::in_transit});
  return Handover{rref, fork, self_, object.kind->first.creator, object.state == ObjectState::live};
}

void OwnerTable::lend_ended(const Handover& lent, Outcome outcome, Actions& out) {
  Object* object = find(lent.rref);
  if (object == nullptr) return;
  Fork* fork = object->forks.find(lent.fork);
  if (fork == nullptr) return;  // the user had it and has released it, or was dropped
  if (outcome == Outcome::accepted) {
    fork->transit = Transit::arrived;
    return;
  }
  // A fork that was not sent is erased at once, but its number is a gap in the numbers that the user
  // remembers. The probe closes this gap.
  if (fork->transit != Transit::probing) out.push_back(Send<ForkProbe>{*fork->user, {lent.rref, lent.fork}});
  fork->transit = Transit::probing;
  if (outcome == Outcome::not_sent) {
    object->forks.erase(fork);
    collect(lent.rref, out);
  }
}

void OwnerTable::probe_answered(const ForkProbe& probe, const ProbeReply& reply, Actions& out) {
  Object* object = find(probe.rref);
  if (object == nullptr) return;
  Fork* fork = object->forks.find(probe.fork);
  if (fork == nullptr) return;
  if (reply.held) {
    fork->transit = Transit::arrived;
  } else {
    object->forks.erase(fork);
    collect(probe.rref, out);
  }
}

// --- Messages ---

Standing OwnerTable::on_fork_add(const rpc::AgentId& from, const ForkAdd& message, Actions& out) {
  if (is_dropped(from)) return {Verdict::lease_lost, {}};
  if (message.fork.origin == self_.incarnation) {
    // The object was lent before it was live: the user asks for the result of the creation, which also proves
    // that the fork arrived.
    Object* object = find(message.rref);
    if (object == nullptr) return {Verdict::ended, {}};
    Fork* fork = object->forks.find(message.fork);
    if (fork == nullptr || *fork->user != from) return {Verdict::ended, {}};
    fork->transit = Transit::arrived;
    return standing(message.rref, message.fork);
  }
  if (message.parent.incarnation != message.fork.origin) return {Verdict::ended, {}};
  const rpc::AgentId& user = watch(from, out).first;
  if (!is_dropped(message.parent)) watch(message.parent, out);
  if (!settle(message.parent, message.fork)) return standing(message.rref, message.fork);
  Object* object = find_or_expect(message.rref, message.creator, out);
  if (object == nullptr || object->forks.contains(message.fork)) return {Verdict::ended, {}};
  object->forks.add({message.fork, &user});
  return standing(message.rref, message.fork);
}

Standing OwnerTable::on_fork_delete(const rpc::AgentId& from, const ForkDelete& message, Actions& out) {
  if (is_dropped(from)) return {Verdict::lease_lost, {}};
  if (Object* object = find(message.rref)) {
    const Fork* fork = object->forks.find(message.fork);
    if (fork != nullptr && *fork->user == from) {
      object->forks.erase(fork);
      collect(message.rref, out);
    }
  }
  return {Verdict::ended, {}};
}

Standing OwnerTable::on_fork_fence(const rpc::AgentId& from, const ForkFence& message, Actions& out) {
  if (is_dropped(from)) return {Verdict::lease_lost, {}};
  if (message.fork.origin != from.incarnation) return {Verdict::ended, {}};
  watch(from, out);
  const bool never = settle(from, message.fork);
  if (!never) return standing(message.rref, message.fork);
  Object* object = find(message.rref);
  if (object != nullptr && object->state == ObjectState::expected && object->kind->first.creator == from &&
      message.fork == creators_fork(message.rref)) {
    fail(message.rref, *object, "the creation never arrived at the owner", out);
    collect(message.rref, out);
  }
  return {Verdict::ended, {}};
}

// --- Peers ---

void OwnerTable::connection_ended(const rpc::AgentId& peer, Actions& out) {
  for (auto& [rref, object] : objects_) {
    for (Fork& fork : object.forks) {
      if (fork.transit != Transit::in_transit || *fork.user != peer) continue;
      fork.transit = Transit::probing;
      out.push_back(Send<ForkProbe>{peer, {rref, fork.id}});
    }
  }
}

// Walks all forks: deaths are rare, and an index by user would have to be kept on every hand-over.
bool OwnerTable::drop_agent(const rpc::AgentId& agent, Actions& out) {
  if (!dropped_.add(agent).second) return false;
  std::vector<RRefId> touched;
  for (auto& [rref, object] : objects_) {
    const std::size_t ended = object.forks.erase_of(agent);
    const bool orphan = object.state == ObjectState::expected && object.kind->first.creator == agent;
    if (orphan)
      fail(rref, object, "its creator " + to_string(agent) + " was lost before it was created", out);
    if (ended > 0 || orphan) touched.push_back(rref);
  }
  peers_.erase(agent);
  for (const RRefId& rref : touched) collect(rref, out);
  return true;
}

// --- Reports ---

std::vector<LiveObject> OwnerTable::live_objects() const {
  std::vector<LiveObject> report;
  for (const auto& [rref, object] : objects_) {
    LiveObject& entry = report.emplace_back();
    entry.id = rref;
    entry.info = {object.kind->first.type, object.kind->first.site, object.made};
    entry.state = object.state;
    entry.holds = object.holds;
    for (const Fork& fork : object.forks) entry.forks.emplace_back(fork.id, *fork.user);
  }
  return report;
}

bool OwnerTable::has_fork(const RRefId& rref, const ForkId& fork) const {
  const Object* object = find(rref);
  return object != nullptr && object->forks.contains(fork);
}

std::string OwnerTable::failure(const RRefId& rref) const {
  const auto found = failures_.find(rref);
  return found == failures_.end() ? std::string() : found->second;
}

std::size_t OwnerTable::birth_ranges() const {
  std::size_t ranges = 0;
  for (const auto& [agent, peer] : peers_) ranges += peer.births.ranges();
  return ranges;
}

}  // namespace weft::rref::protocol

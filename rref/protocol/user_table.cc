#include <weft/rref/protocol/user_table.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace weft::rref::protocol {

UserTable::UserTable(rpc::AgentId self) : self_(std::move(self)) {}

// --- Small steps ---

UserTable::Owner& UserTable::watch(const rpc::AgentId& owner, Actions& out) {
  auto [entry, is_new] = owners_.try_emplace(owner);
  if (is_new) out.push_back(WatchAgent{owner});
  return entry->second;
}

UserTable::Fork& UserTable::known(const ForkId& fork) {
  return const_cast<Fork&>(std::as_const(*this).known(fork));
}

const UserTable::Fork& UserTable::known(const ForkId& fork) const {
  auto entry = forks_.find(fork);
  if (entry == forks_.end()) throw std::logic_error("UserTable: no fork " + to_string(fork));
  return entry->second;
}

// A fork that its caller may use: after the release of the last handle and request, it may already be
// releasing.
UserTable::Fork& UserTable::in_use(const ForkId& fork) {
  Fork& entry = known(fork);
  if (entry.handles + entry.requests == 0)
    throw std::logic_error("UserTable: no handle or request on fork " + to_string(fork));
  return entry;
}

void UserTable::set_fault(const ForkId& id, Fork& fork, Fault fault, const std::string& text, Actions& out) {
  if (fork.fault != Fault::none) return;
  fork.fault = fault;
  fork.text = text;
  out.push_back(ForkFailed{id, fault, text});
}

void UserTable::notify_parent(const ForkId& id, Fork& fork, bool by_owner, Actions& out) {
  if (!fork.parent) return;
  out.push_back(Send<ChildSettled>{*fork.parent, {id, by_owner}});
  fork.parent.reset();
}

void UserTable::confirm(const ForkId& id, Fork& fork, const std::string& creation_failure, Actions& out) {
  fork.stage = Stage::confirmed;
  notify_parent(id, fork, true, out);
  if (!creation_failure.empty()) set_fault(id, fork, Fault::creation_failed, creation_failure, out);
  if (fork.fault == Fault::none) out.push_back(ForkConfirmed{id});
  reap(id, out);
}

void UserTable::end(const ForkId& id, Fork& fork, Fault fault, const std::string& text, Actions& out) {
  fork.stage = Stage::ended;
  set_fault(id, fork, fault, text, out);
  reap(id, out);
}

// A fork ends only here: it has no handle, no request and no child, and the owner either knows it or never
// will.
void UserTable::reap(const ForkId& id, Actions& out) {
  auto entry = forks_.find(id);
  if (entry == forks_.end()) return;
  Fork& fork = entry->second;
  if ((fork.handles > 0 && !leaving_) || fork.requests > 0 || !fork.children.empty()) return;
  if (fork.stage == Stage::confirmed) {
    fork.stage = Stage::releasing;
    if (fork.fault == Fault::none) fork.fault = Fault::released;  // of handles that are left
    out.push_back(Send<ForkDelete>{fork.owner, {fork.rref, id}});
  } else if (fork.stage == Stage::ended && fork.handles == 0) {
    forks_.erase(entry);
  }
}

// --- Where forks come from ---

std::optional<Handover> UserTable::create(const rpc::AgentId& owner, Actions& out) {
  if (lost_.contains(owner)) return std::nullopt;
  const std::uint64_t number = birth_base(owner.incarnation) + watch(owner, out).next_birth++;
  const RRefId rref{self_.incarnation, number};
  // An owner that had the same incarnation has used the number.
  if (forks_.contains(creators_fork(rref))) return std::nullopt;
  Fork& fork = forks_[creators_fork(rref)];
  fork.rref = rref;
  fork.owner = owner;
  fork.creator = self_;
  fork.handles = 1;
  return Handover{rref, creators_fork(rref), owner, self_, false};
}

void UserTable::create_ended(const ForkId& id, Outcome outcome, Actions& out) {
  auto entry = forks_.find(id);
  if (entry == forks_.end() || entry->second.stage != Stage::pending) return;
  if (outcome == Outcome::accepted) {
    confirm(id, entry->second, {}, out);
  } else {
    // Also if it was not sent: others may hold children of this fork, and wait at the owner for the creation.
    out.push_back(Send<ForkFence>{entry->second.owner, {entry->second.rref, id}});
  }
}

Fault UserTable::receive(const rpc::AgentId& from, const Handover& handover, Actions& out) {
  if (handover.owner == self_)
    throw std::logic_error("UserTable: an object of this agent belongs to its OwnerTable");
  const bool lent = handover.owner == from;
  if (const Fault* lost = lost_.find(handover.owner)) {
    if (!lent) out.push_back(Send<ChildSettled>{from, {handover.fork, false}});
    return *lost;
  }
  if (handover.fork.origin != from.incarnation || from == self_) return Fault::refused;
  Owner& owner = watch(handover.owner, out);
  if (lent && !owner.lends.insert(handover.fork.number - lend_base(self_.incarnation))) return Fault::refused;
  auto [entry, is_new] = forks_.try_emplace(handover.fork);
  if (!is_new) return Fault::refused;

  Fork& fork = entry->second;
  fork.rref = handover.rref;
  fork.owner = handover.owner;
  fork.creator = handover.creator;
  fork.handles = 1;
  if (lent && handover.settled) {
    confirm(handover.fork, fork, {}, out);
    return Fault::none;
  }
  if (!lent) fork.parent = from;
  fork.serial = ++next_serial_;
  out.push_back(Send<ForkAdd>{fork.owner, {fork.rref, handover.fork, fork.creator, from, fork.serial}});
  return Fault::none;
}

// --- Using them ---

void UserTable::retain(const ForkId& id) { ++in_use(id).handles; }

void UserTable::release(const ForkId& id, Actions& out) {
  Fork& fork = known(id);
  if (fork.handles == 0) throw std::logic_error("UserTable: no handle on fork " + to_string(id));
  --fork.handles;
  reap(id, out);
}

Fault UserTable::begin_request(const ForkId& id) {
  Fork& fork = in_use(id);
  if (fork.fault == Fault::none) ++fork.requests;
  return fork.fault;
}

void UserTable::end_request(const ForkId& id, Actions& out) {
  Fork& fork = known(id);
  if (fork.requests == 0) throw std::logic_error("UserTable: no request through fork " + to_string(id));
  --fork.requests;
  reap(id, out);
}

Handover UserTable::describe(const ForkId& id) const {
  const Fork& fork = known(id);
  return {fork.rref, id, fork.owner, fork.creator, false};
}

// --- Handing over ---

std::optional<Handover> UserTable::hand_over(const ForkId& parent, const rpc::AgentId& to) {
  Fork& fork = in_use(parent);
  if (fork.fault != Fault::none) return std::nullopt;
  // A fork without a fault has a watched owner.
  const ForkId child{self_.incarnation,
                     birth_base(fork.owner.incarnation) + owners_.at(fork.owner).next_birth++};
  fork.children.emplace(child, Child{to});
  parents_.emplace(child, parent);
  return Handover{fork.rref, child, fork.owner, fork.creator, false};
}

void UserTable::fence(const Fork& parent, const ForkId& id, Child& child, Actions& out) {
  if (child.fencing) return;
  child.fencing = true;
  out.push_back(Send<ForkFence>{parent.owner, {parent.rref, id}});
}

void UserTable::drop_child(const ForkId& child, Actions& out) {
  auto entry = parents_.find(child);
  if (entry == parents_.end()) return;
  const ForkId parent = entry->second;
  parents_.erase(entry);
  known(parent).children.erase(child);
  reap(parent, out);
}

void UserTable::hand_over_ended(const ForkId& child, Outcome outcome, Actions& out) {
  auto entry = parents_.find(child);
  if (entry == parents_.end()) return;
  Fork& parent = known(entry->second);
  // A child that was not sent is settled at once, but its number is a gap in the numbers that the owner
  // remembers. The fence closes this gap.
  if (outcome != Outcome::accepted) fence(parent, child, parent.children.at(child), out);
  if (outcome != Outcome::unknown) drop_child(child, out);
}

// --- Messages and answers ---

void UserTable::on_child_settled(const rpc::AgentId& from, const ChildSettled& message, Actions& out) {
  auto entry = parents_.find(message.fork);
  if (entry == parents_.end()) return;
  Fork& parent = known(entry->second);
  Child& child = parent.children.at(message.fork);
  if (child.to != from) return;
  if (message.by_owner) {
    drop_child(message.fork, out);
  } else {
    fence(parent, message.fork, child, out);
  }
}

void UserTable::on_creation_failed(const rpc::AgentId& from, const CreationFailed& message, Actions& out) {
  auto entry = forks_.find(message.fork);
  if (entry == forks_.end() || entry->second.owner != from) return;
  set_fault(message.fork, entry->second, Fault::creation_failed, message.failure, out);
}

ProbeReply UserTable::on_fork_probe(const rpc::AgentId& from, const ForkProbe& message, Actions& out) {
  if (message.fork.origin != from.incarnation || lost_.contains(from)) return {false};
  watch(from, out).lends.insert(message.fork.number -
                                lend_base(self_.incarnation));  // from now on it is refused
  return {forks_.contains(message.fork)};
}

void UserTable::answered(const rpc::AgentId& owner, const ForkAdd& message, const Standing& answer,
                         Actions& out) {
  if (answer.verdict == Verdict::lease_lost) return lease_lost(owner, out);
  auto entry = forks_.find(message.fork);
  // A repeated hand-over can recreate a fork here, but not at the owner: an answer for its first existence
  // does not apply to it.
  if (entry == forks_.end() || entry->second.serial != message.serial) return;
  if (entry->second.stage != Stage::pending) return;
  if (answer.verdict == Verdict::registered) {
    confirm(message.fork, entry->second, answer.creation_failure, out);
  } else {
    notify_parent(message.fork, entry->second, true, out);
    end(message.fork, entry->second, Fault::refused, "the owner no longer knows the hand-over or the object",
        out);
  }
}

void UserTable::answered(const rpc::AgentId& owner, const ForkDelete& message, const Standing& answer,
                         Actions& out) {
  if (answer.verdict == Verdict::lease_lost) return lease_lost(owner, out);
  auto entry = forks_.find(message.fork);
  if (entry == forks_.end() || entry->second.stage != Stage::releasing) return;
  entry->second.stage = Stage::ended;
  reap(message.fork, out);
}

void UserTable::answered(const rpc::AgentId& owner, const ForkFence& message, const Standing& answer,
                         Actions& out) {
  if (answer.verdict == Verdict::lease_lost) return lease_lost(owner, out);
  if (message.fork != creators_fork(message.rref)) {
    return drop_child(message.fork, out);  // registered or not, it no longer depends on its parent
  }
  auto entry = forks_.find(message.fork);
  if (entry == forks_.end() || entry->second.stage != Stage::pending) return;
  if (answer.verdict == Verdict::registered) {
    confirm(message.fork, entry->second, answer.creation_failure, out);
  } else {
    end(message.fork, entry->second, Fault::creation_failed, "the creation never arrived at the owner", out);
  }
}

// --- Peers ---

void UserTable::connection_ended(const rpc::AgentId& peer, Actions& out) {
  for (const auto& [id, parent] : parents_) {
    Fork& fork = known(parent);
    Child& child = fork.children.at(id);
    if (child.to == peer) fence(fork, id, child, out);
  }
}

void UserTable::agent_lost(const rpc::AgentId& agent, Actions& out) {
  lose(agent, Fault::owner_lost, out);
  connection_ended(agent, out);
}

void UserTable::lease_lost(const rpc::AgentId& owner, Actions& out) { lose(owner, Fault::lease_lost, out); }

void UserTable::lose(const rpc::AgentId& owner, Fault fault, Actions& out) {
  if (!lost_.add(owner, fault).second) return;
  owners_.erase(owner);
  const std::string text = fault == Fault::lease_lost ? to_string(owner) + " declared this agent dead"
                                                      : to_string(owner) + " is lost";
  std::vector<ForkId> touched;
  for (auto& [id, fork] : forks_) {
    if (fork.owner == owner) touched.push_back(id);
  }
  for (const ForkId& id : touched) {
    Fork& fork = known(id);
    // Children of a lost owner's object are not protected: each of them detects the loss itself.
    for (const auto& [child, whom] : fork.children) parents_.erase(child);
    fork.children.clear();
    if (fork.stage == Stage::pending) notify_parent(id, fork, false, out);
    end(id, fork, fault, text, out);
  }
}

// --- Reports ---

ForkView UserTable::view(const ForkId& id, const Fork& fork) {
  return {id,        fork.rref,    fork.owner,    fork.stage,          fork.fault,
          fork.text, fork.handles, fork.requests, fork.children.size()};
}

std::optional<ForkView> UserTable::find(const ForkId& fork) const {
  auto entry = forks_.find(fork);
  return entry == forks_.end() ? std::nullopt : std::optional(view(entry->first, entry->second));
}

std::vector<ForkView> UserTable::live_forks() const {
  std::vector<ForkView> report;
  report.reserve(forks_.size());
  for (const auto& [id, fork] : forks_) report.push_back(view(id, fork));
  return report;
}

void UserTable::leave(Actions& out) {
  leaving_ = true;
  std::vector<ForkId> all;
  all.reserve(forks_.size());
  for (const auto& [id, fork] : forks_) all.push_back(id);
  for (const ForkId& id : all) reap(id, out);
}

bool UserTable::has_ending_forks() const {
  return std::any_of(forks_.begin(), forks_.end(), [&](const auto& entry) {
    return (entry.second.handles == 0 || leaving_) && entry.second.stage != Stage::ended;
  });
}

std::size_t UserTable::lend_ranges() const {
  std::size_t ranges = 0;
  for (const auto& [agent, owner] : owners_) ranges += owner.lends.ranges();
  return ranges;
}

}  // namespace weft::rref::protocol

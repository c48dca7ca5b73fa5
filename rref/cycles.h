// Finds cycles of objects that hold one another by RRefs. Reference counting never frees these objects.
//
//   struct Node : rref::Holder {
//     void held(rref::HeldReferences& out) const override { out.add(next); }
//     rref::RRef<Node> next;
//   };
//   for (const auto& cycle : rref::find_cycles({agent.peer("a"), agent.peer("b")}).get()) …
//
// weft cannot inspect an object, so a type that holds RRefs derives from Holder and reports them. Objects of
// other types count as holding nothing. find_cycles() calls each owner (the method `weft.rref.holdings`). An
// owner asks its objects in their turns, so a busy object delays the reply: give the peers a deadline. The
// owners reply at different moments, so the result may contain only a part of a concurrent change. A cycle
// that is garbage does not change. Thread-safety: values; find_cycles() may be called from any thread.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rref/rref.h>
#include <weft/rref/section.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

namespace weft::rref {

class HeldReferences {
 public:
  template <class T>
  void add(const RRef<T>& held) {
    if (held.valid()) ++held_[held.reference()];
  }
  template <class T>
  void add(const std::optional<RRef<T>>& held) {
    if (held) add(*held);
  }
  template <class T>
  void add(const std::vector<RRef<T>>& held) {
    for (const auto& one : held) add(one);
  }
  // The handles that were added, each with its number of copies.
  const std::map<ReferencePtr, long>& all() const { return held_; }

 private:
  std::map<ReferencePtr, long> held_;
};

// Base class of types that report what they hold.
class WEFT_EXPORT Holder {
 public:
  virtual ~Holder() = default;
  // Adds the RRefs that the object holds. Called in the object's turn; for a concurrent type, at any time.
  virtual void held(HeldReferences& out) const = 0;
};

// --- An owner's answer ---

// One RRef that an object holds.
struct HeldReference {
  RRefId rref;
  std::optional<ForkId> fork;  // nullopt: the holder's agent owns the object
  bool shared = false;         // other code on the holder's agent has copies of the same handle
};
WEFT_CODEC(HeldReference, rref, fork, shared)

// One object of an owner, with the RRefs that it holds.
struct HoldingObject {
  std::vector<RRefId> ids;  // several RRefs may have been made of one object (Named)
  std::string type, site;
  std::vector<HeldReference> held;
  std::vector<ForkId> forks;  // the forks of all its users
  std::uint64_t holds = 0;    // the number of holds of its owner
  bool named = false;         // a name keeps it
};
WEFT_CODEC(HoldingObject, ids, type, site, held, forks, holds, named)

// The objects of one agent, by its name.
struct Holdings {
  std::string agent;
  std::vector<HoldingObject> objects;
};
WEFT_CODEC(Holdings, agent, objects)

// --- The result ---

// One object of a cycle.
struct CycleMember {
  std::string owner;  // the name of its agent
  RRefId id;
  std::string type, site;
};

// Objects that all hold each other, directly or through other objects; or one object that holds itself.
struct Cycle {
  std::vector<CycleMember> members;
  // true: nothing outside the cycle holds a member. So no program can reach the members, and they exist until
  // an owner ends.
  bool garbage = false;
};

// One line: the members with their owners, types and creation sites.
WEFT_EXPORT std::string to_string(const Cycle& cycle);
// A pure function. Returns each cycle once; the cycles have the order of their first members in `agents`.
WEFT_EXPORT std::vector<Cycle> cycles_of(const std::vector<Holdings>& agents);

// The objects of one owner. Fails as a call to the owner does.
WEFT_EXPORT rpc::Future<Holdings> holdings(const rpc::Peer& owner);
// Finds the cycles of objects of these agents. A cycle with an object of another agent is not found. Fails if
// a peer does not reply.
WEFT_EXPORT rpc::Future<std::vector<Cycle>> find_cycles(const std::vector<rpc::Peer>& agents);

// Called by the layer.
WEFT_EXPORT void serve_holdings(rpc::AgentCore& core, const std::shared_ptr<RRefLayer>& layer);

}  // namespace weft::rref

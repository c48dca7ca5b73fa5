// The list of an agent's objects and references. The method `weft.rref.list` returns it to peers, and list()
// also to the agent's own program.
//
// A loop serves the method, so it replies while every handler thread is busy. The list is a snapshot: it may
// or may not count references in transit. Thread-safety: values; the functions may be called from any thread.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/codec/struct_codec.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace weft::rref {

class RRefLayer;

// The number of objects and references of one agent.
struct ReferenceStats {
  std::uint64_t objects = 0;  // objects that live on this agent
  // Objects in creation on this agent, and objects whose creation has not arrived.
  std::uint64_t creating = 0;
  std::uint64_t failed = 0;  // objects whose creation failed, and which are still held
  // Holds of this agent itself on its own objects: handles, and requests in progress.
  std::uint64_t holds = 0;
  std::uint64_t forks = 0;       // forks of this agent's objects that other agents have
  std::uint64_t references = 0;  // forks of other agents' objects that this agent has
  std::uint64_t pending = 0;     // the number of `references` that the owner has not confirmed
  std::uint64_t children = 0;    // forks that this agent has handed over, and which are not settled yet
};
WEFT_CODEC(ReferenceStats, objects, creating, failed, holds, forks, references, pending, children)

// One object that lives on the agent.
struct ObjectListing {
  std::string id;
  std::string type;                    // its service's name, or the canonical type of a value
  std::string state;                   // "expected", "creating", "live", "failed"
  std::optional<std::uint64_t> bytes;  // if known: ObjectSizes
  std::uint64_t holds = 0;
  std::vector<std::string> users;  // one for each fork, sorted
  double age = 0;                  // seconds, to a few milliseconds
  std::string site;                // where the program created it; "" if unknown
};
WEFT_CODEC(ObjectListing, id, type, state, bytes, holds, users, age, site)

// The answer of one agent.
struct ReferenceListing {
  std::string agent;
  ReferenceStats stats;
  std::vector<ObjectListing> objects;  // the oldest first
  std::uint64_t more = 0;              // the number of objects that were left out
};
WEFT_CODEC(ReferenceListing, agent, stats, objects, more)

// The value of `limit` with which no object is left out.
inline constexpr std::uint64_t all_objects = std::numeric_limits<std::uint64_t>::max();

// The statistics and the list of an agent of this program. Throws failed_precondition if the agent does not
// have the RRef layer.
WEFT_EXPORT ReferenceStats stats(const rpc::Agent& agent);
WEFT_EXPORT ReferenceListing list(const rpc::Agent& agent, std::uint64_t limit = all_objects);
// The list of any agent. Fails with not_found if the agent does not have the RRef layer.
WEFT_EXPORT rpc::Future<ReferenceListing> list(const rpc::Peer& peer, std::uint64_t limit = all_objects);

// Called by the layer.
WEFT_EXPORT void serve_listing(rpc::AgentCore& core, const std::shared_ptr<RRefLayer>& layer);

}  // namespace weft::rref

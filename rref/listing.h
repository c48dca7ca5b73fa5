// The list of an agent's objects and references: the method `weft.rref.list`, and the same within the
// program.
//
// It is answered on the loop, so it is also answered while every handler thread is busy. It shows one moment:
// references in transit may or may not be counted. Thread-safety: values; the functions may be called from
// any thread.
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
  std::uint64_t objects = 0;     // live on this agent
  std::uint64_t creating = 0;    // are being created here, or their creation has not arrived yet
  std::uint64_t failed = 0;      // their creation failed, and they are still held
  std::uint64_t holds = 0;       // by this agent itself, on objects here: handles and requests in progress
  std::uint64_t forks = 0;       // of objects here, held by other agents
  std::uint64_t references = 0;  // this agent's forks of objects elsewhere
  std::uint64_t pending = 0;     // the part of them that their owner has not confirmed yet
  std::uint64_t children = 0;    // forks in transit from here to others, which their owner need not know yet
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
  double age = 0;                  // seconds, to some milliseconds
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

// As a limit: no object is left out.
inline constexpr std::uint64_t all_objects = std::numeric_limits<std::uint64_t>::max();

// Of an agent of this program. failed_precondition if it has no RRefs.
WEFT_EXPORT ReferenceStats stats(const rpc::Agent& agent);
WEFT_EXPORT ReferenceListing list(const rpc::Agent& agent, std::uint64_t limit = all_objects);
// Of any agent. not_found if it has no RRefs.
WEFT_EXPORT rpc::Future<ReferenceListing> list(const rpc::Peer& peer, std::uint64_t limit = all_objects);

// Called by the layer.
WEFT_EXPORT void serve_listing(rpc::AgentCore& core, const std::shared_ptr<RRefLayer>& layer);

}  // namespace weft::rref

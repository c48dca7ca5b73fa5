// What an agent says of its objects and references when it is asked: the method `weft.rref.list`, and the
// same within the program.
//
// Answered on the loop, so also while every handler thread is busy. A picture of one moment: what is on its
// way may be counted or not. Thread-safety: values; the functions may be called from any thread.
#pragma once

#include <weft/rpc/agent/agent.h>
#include <weft/rpc/codec/struct_codec.h>

#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace weft::rref {

class RRefLayer;

struct ReferenceStats {
  std::uint64_t objects = 0;     // that live here
  std::uint64_t creating = 0;    // that are being made here, or whose creation has not arrived yet
  std::uint64_t failed = 0;      // whose creation failed, and which somebody still holds
  std::uint64_t holds = 0;       // on objects here by this agent itself: handles and requests in progress
  std::uint64_t forks = 0;       // of objects here, held by others
  std::uint64_t references = 0;  // forks of this agent, of objects elsewhere
  std::uint64_t pending = 0;     // of these, not confirmed by their owner yet
  std::uint64_t children = 0;  // forks on their way from here to others, which their owner need not know yet
};
WEFT_CODEC(ReferenceStats, objects, creating, failed, holds, forks, references, pending, children)

struct ObjectListing {
  std::string id;
  std::string type;                    // its service's name, or the canonical type of a value
  std::string state;                   // "expected", "creating", "live", "failed"
  std::optional<std::uint64_t> bytes;  // where known: ObjectSizes
  std::uint64_t holds = 0;
  std::vector<std::string> users;  // one for each fork, sorted
  double age = 0;                  // seconds, to some milliseconds
  std::string site;                // where the program created it; "" where unknown
};
WEFT_CODEC(ObjectListing, id, type, state, bytes, holds, users, age, site)

struct ReferenceListing {
  std::string agent;
  ReferenceStats stats;
  std::vector<ObjectListing> objects;  // the oldest first
  std::uint64_t more = 0;              // that were left out
};
WEFT_CODEC(ReferenceListing, agent, stats, objects, more)

inline constexpr std::uint64_t all_objects = std::numeric_limits<std::uint64_t>::max();

// Of an agent of this program. failed_precondition where it has no RRefs.
WEFT_EXPORT ReferenceStats stats(const rpc::Agent& agent);
WEFT_EXPORT ReferenceListing list(const rpc::Agent& agent, std::uint64_t most = all_objects);
// Of any. not_found where it has no RRefs.
WEFT_EXPORT rpc::Future<ReferenceListing> list(const rpc::Peer& peer, std::uint64_t most = all_objects);

// Called by the layer.
WEFT_EXPORT void serve_listing(rpc::AgentCore& core, const std::shared_ptr<RRefLayer>& layer);

}  // namespace weft::rref

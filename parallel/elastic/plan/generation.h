// Generation: which workers train together, by rank, until the next change. The decisions about it, as pure
// functions: the members of the next generation, and the rank from which the others take the state. No
// LibTorch.
//
// Generations are numbered from 1. The job's store holds the latest one; it is replaced by compare-and-set,
// so all workers see one sequence of generations (docs/elastic.md).
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace weft::elastic {

struct Generation {
  std::uint64_t number = 0;                // 0: there was none yet
  std::vector<rpc::AgentId> members = {};  // by rank
  bool finished = false;                   // its members have trained to the end: no generation follows

  // Whether this incarnation of the worker is a member.
  WEFT_EXPORT bool contains(const rpc::AgentId& worker) const;
  friend bool operator==(const Generation&, const Generation&) = default;
};

// The form in the job's store. generation_from_text() throws protocol_error for malformed text.
WEFT_EXPORT std::string to_text(const Generation& generation);
WEFT_EXPORT Generation generation_from_text(const std::string& text);

// A worker that is ready to train.
struct Candidate {
  rpc::AgentId id;
  std::uint64_t order = 0;  // among workers that were not in the generation before
};

// The number of workers in a generation.
struct WorkerLimits {
  std::size_t min = 1;    // at least 1
  std::size_t start = 0;  // the minimum of the first generation, if it is greater than `min`
  std::size_t max = std::numeric_limits<std::size_t>::max();  // further candidates are spares
};

// The generation after `current`: those of its members that are candidates, in their order, then the other
// candidates by their order, up to the maximum. Nothing, if there are too few candidates.
WEFT_EXPORT std::optional<Generation> next_generation(const Generation& current,
                                                      std::vector<Candidate> candidates,
                                                      const WorkerLimits& limits);

// Whether this worker may replace `current`: it is a member, or no member is a candidate any more.
WEFT_EXPORT bool may_propose(const Generation& current, const std::vector<Candidate>& candidates,
                             const rpc::AgentId& self);

// The state of a rank when a generation begins.
struct Standing {
  bool synced = false;  // its commits continue those of the generation before
  std::uint64_t commits = 0;
  bool sends_later = false;  // it can send its state while the next step is made
  // Numbers of generations: the last one that this rank began, and the one in which its last commit was made.
  std::uint64_t began = 0, committed = 0;
  std::uint64_t entered = 0;  // the last one whose group this rank was in; the ranks may not have begun it
};

// A rank does not count as synced if it took no part in a generation that has committed: the others
// considered it dead, and have trained without it. is_sharded: each rank has a shard of a commit. Then a rank
// does not count either if others have begun a generation without it, and have fewer commits: the other
// shards of the commits that they lack are lost.
WEFT_EXPORT std::vector<Standing> without_abandoned(std::vector<Standing> ranks, bool is_sharded = false);

struct Transfer {  // of the state, between two ranks
  int from = 0, to = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// Where the ranks get the state of a new generation.
struct SyncPlan {
  int source = 0;       // the rank whose commit all ranks have afterwards; set in any case
  bool needed = false;  // false: all ranks have the same commit
  // The state is sent while the next step is made: from ranks that have it, in turn, to those that are new.
  // Empty: the source sends it to all at once.
  std::vector<Transfer> later = {};
};

// The source is the rank with the most commits, among those that are synced if there are any; the lowest one
// of several. All ranks compute this from the standings of all, so they agree on whether there is a sync. It
// is later if the source allows that, and all ranks either have its commit or are not synced. ranks: of
// without_abandoned().
WEFT_EXPORT SyncPlan plan_sync(const std::vector<Standing>& ranks);

}  // namespace weft::elastic

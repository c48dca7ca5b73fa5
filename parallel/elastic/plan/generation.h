// Generation: the workers that train together, by rank, until the next change. Pure functions decide on the
// members of the next generation, and on the rank that sends its state to the others. No LibTorch.
//
// Generations are numbered from 1. The job's store holds the latest one; it is replaced by compare-and-set,
// so all workers see one sequence of generations (docs/elastic.md).
#pragma once

#include <weft/rpc/core/agent_id.h>
#include <weft/rpc/core/export.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace weft::elastic {

struct Generation {
  std::uint64_t number = 0;                // 0: no generation has begun
  std::vector<rpc::AgentId> members = {};  // by rank
  bool finished = false;                   // its members have trained to the end: no generation follows

  // Whether this incarnation of the worker is a member.
  WEFT_EXPORT bool contains(const rpc::AgentId& worker) const;
  friend bool operator==(const Generation&, const Generation&) = default;
};

// Convert to and from the text in the job's store. generation_from_text() throws protocol_error for malformed
// text.
WEFT_EXPORT std::string to_text(const Generation& generation);
WEFT_EXPORT Generation generation_from_text(const std::string& text);

// A worker that is ready to train.
struct Candidate {
  rpc::AgentId id;
  std::uint64_t order = 0;  // of arrival, for candidates that were not in the previous generation
};

// The number of workers in a generation. 0: not set.
struct WorkerLimits {
  std::size_t min = 0;    // not set: 1
  std::size_t start = 0;  // the minimum of the first generation, if it is greater than `min`
  std::size_t max = 0;    // further candidates are spares; not set: no maximum

  // These limits, with those of `others` in the place of limits that are not set.
  WEFT_EXPORT WorkerLimits or_else(const WorkerLimits& others) const;
  // The minimum of the generation after `current`.
  WEFT_EXPORT std::size_t least(const Generation& current) const;
};

// Returns the generation after `current`: its members that are candidates, in their order, then the other
// candidates by Candidate::order, up to the maximum. nullopt: there are too few candidates.
WEFT_EXPORT std::optional<Generation> next_generation(const Generation& current,
                                                      std::vector<Candidate> candidates,
                                                      const WorkerLimits& limits);

// Whether this worker may replace `current`: it is a member, or no member is a candidate any more.
WEFT_EXPORT bool may_propose(const Generation& current, const std::vector<Candidate>& candidates,
                             const rpc::AgentId& self);

// The state of a rank when a generation begins.
struct Standing {
  bool synced = false;  // its commits continue those of the previous generation
  std::uint64_t commits = 0;
  bool sends_later = false;  // it can send its state during the next step
  // Numbers of generations: the last one that this rank began, and the one of its last commit.
  std::uint64_t began = 0, committed = 0;
  // The last generation whose group this rank joined, even if no rank has begun that generation.
  std::uint64_t entered = 0;
};

// Clears `synced` of the ranks that were not in a generation that has committed: the other ranks considered
// them dead and have trained without them. is_sharded: true if each rank has only a shard of a commit. Then
// `synced` of a rank is also cleared if a synced rank has begun a generation without that rank and has fewer
// commits: the other shards of that rank's later commits are lost.
WEFT_EXPORT std::vector<Standing> without_abandoned(std::vector<Standing> ranks, bool is_sharded = false);

struct Transfer {  // of the state, between two ranks
  int from = 0, to = 0;
  friend bool operator==(const Transfer&, const Transfer&) = default;
};

// The transfers of state at the beginning of a generation.
struct SyncPlan {
  int source = 0;       // the rank whose commit all ranks have afterwards; always set
  bool needed = false;  // false: all ranks have the same commit
  // Transfers during the next step, from the ranks that have the state, in turn, to the new ranks. Empty: the
  // source sends the state to all ranks before the next step.
  std::vector<Transfer> later = {};
};

// The source is the lowest rank with the most commits, among the synced ranks if there are any. All ranks
// compute the plan from the standings of all ranks, so they agree on it. `later` is used if sends_later is
// true for the source, and each rank either has the source's commit or is not synced. ranks: the result of
// without_abandoned().
WEFT_EXPORT SyncPlan plan_sync(const std::vector<Standing>& ranks);

}  // namespace weft::elastic

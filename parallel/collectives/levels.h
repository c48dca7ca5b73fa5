// Levels: a collective of ranks on several hosts, as one of them carries it out: in the memory that the ranks
// of its host share, then by messages between hosts, then in memory again.
//
// Hosts have equally many ranks. The i-th of each are a column: an all_reduce is reduced on each host, a
// block a rank, then every column reduces its block among the hosts, and every host gathers the blocks. So a
// byte crosses between hosts as rarely as can be, and all ranks of a host send. In the first level all ranks
// of a host have said what they mean; a column's messages have the signature's hash: nobody is past the
// second unless all ranks of all hosts mean the same. Pure of threads; a value that points into itself once
// made.
#pragma once

#include <weft/parallel/collectives/collective.h>
#include <weft/parallel/collectives/plan/choice.h>
#include <weft/parallel/collectives/shm/shared_space.h>

namespace weft::collectives {

// Which rank is where; of each host its ranks, in their order.
struct WEFT_EXPORT Hosts {
  // Of the ranks' hosts by name. None: where all have one, or hosts differ in how many ranks they have, or
  // have one each.
  static std::optional<Hosts> of(const std::vector<std::string>& host_of_rank, int rank);

  std::vector<std::vector<int>> ranks;
  int host = 0, index = 0;  // of this rank: its host, and its place there

  int count() const { return static_cast<int>(ranks.size()); }
  int host_of(int rank) const;
  int index_of(int rank) const;
  int in_column(int host) const {  // the rank of this one's column on that host
    return ranks[static_cast<std::size_t>(host)][static_cast<std::size_t>(index)];
  }
};

// Whether there are levels for it; else its plan is of all ranks.
WEFT_EXPORT bool has_levels(Operation operation);

struct WEFT_EXPORT Levels {
  Levels(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  Levels(const Levels&) = delete;
  Levels& operator=(const Levels&) = delete;

  Collective first, last;  // of the host's ranks
  Layout between;          // of the column, by hosts
  PlanMemory memory;       // of that

 private:
  void reduce(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  void broadcast(const Collective& collective, const Hosts& hosts);
};

}  // namespace weft::collectives

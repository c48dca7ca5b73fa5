// Levels: a collective of ranks on several hosts, as one of them carries it out: in the memory that the ranks
// of its host share, then by messages between hosts, then in memory again.
//
// The i-th ranks of all hosts are a column; there are as many columns as the smallest host has ranks. Only
// ranks in columns send messages: in the first level they take what they send from the ranks of their host,
// in the last level these ranks take the result. An all_reduce is reduced on each host, a block a column,
// then every column reduces its block among the hosts, and every host gathers the blocks. all_gather and
// reduce_scatter assign each rank's block to a column: the c-th column has the ranks c, c + columns, … of
// each host. So a byte crosses between hosts as rarely as possible.
//
// In the first level all ranks of a host have said what they mean; a column's messages have the signature's
// hash: no rank in a column is past the second level unless all ranks of all hosts mean the same. A host
// whose ranks mean the same always comes to the last level, since ranks without a column wait there; after a
// difference, ranks in columns come with another signature (refuse_last()). Pure of threads; a value that
// points into itself once made.
#pragma once

#include <weft/parallel/collectives/operation/collective.h>
#include <weft/parallel/collectives/plan/choice.h>
#include <weft/parallel/collectives/shm/shared_space.h>

namespace weft::collectives {

// Which rank is where; of each host its ranks, in their order.
struct WEFT_EXPORT Hosts {
  // Of the ranks' hosts by name. None: where all have one, or each has its own.
  static std::optional<Hosts> of(const std::vector<std::string>& host_of_rank, int rank);

  std::vector<std::vector<int>> ranks;
  int host = 0, index = 0;  // of this rank: its host, and its place there
  int columns = 0;          // as many as the smallest host has ranks

  int count() const { return static_cast<int>(ranks.size()); }
  int here() const { return static_cast<int>(ranks[static_cast<std::size_t>(host)].size()); }
  int host_of(int rank) const;
  int index_of(int rank) const;
  bool in_column() const { return index < columns; }
  int in_column(int host) const {  // the rank of this one's column on that host
    return ranks[static_cast<std::size_t>(host)][static_cast<std::size_t>(index)];
  }
  // The column that carries the blocks of a host's index-th rank.
  int column_of(int index) const { return index % columns; }
};

// Blocks of all ranks, ordered by column, then by host, then by place on the host. Pure.
struct WEFT_EXPORT BlocksByColumn {
  // blocks: of the ranks.
  BlocksByColumn(const Hosts& hosts, const std::vector<Range>& blocks);

  struct Piece {
    Range block;     // by rank
    std::size_t at;  // by column
  };
  std::vector<Piece> pieces;
  std::vector<Range> columns;                // what each column has of it
  std::vector<std::vector<Range>> sections;  // of each column: what each host has, from the column's begin
  bool in_order = true;                      // by column is by rank
};

// Whether there are levels for it; else its plan is of all ranks.
WEFT_EXPORT bool has_levels(Operation operation);

struct WEFT_EXPORT Levels {
  Levels(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  Levels(const Levels&) = delete;
  Levels& operator=(const Levels&) = delete;

  // The ranks do not mean the same: the last level moves nothing, and is no other rank's.
  void refuse_last();

  Collective first, last;  // of the host's ranks
  Layout between;          // of the column, by hosts; of a rank in one
  PlanMemory memory;       // of that

 private:
  void reduce(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  void broadcast(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  void all_gather(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  void reduce_scatter(const Collective& collective, const Hosts& hosts, SharedSpace& space);
};

}  // namespace weft::collectives

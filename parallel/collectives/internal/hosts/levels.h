// Levels: a collective of ranks on several hosts, as one of them executes it: in the memory that the ranks of
// its host share, then by messages between hosts, then in memory again.
//
// The i-th ranks of all hosts are a column; there are as many columns as the smallest host has ranks. Only
// ranks in columns send messages. In the first level they read, in the memory of their host's ranks, the data
// that they send. In the last level all ranks of the host read the result. In an all_reduce, each host first
// reduces its tensors, one block for each column. Then every column reduces its block over the hosts, and
// every host gathers the blocks. all_gather and reduce_scatter assign each rank's block to a column: the c-th
// column has the ranks c, c + columns, … of each host. So a byte crosses between hosts the smallest possible
// number of times.
//
// In the first level all ranks of a host have exchanged their signatures. A column's messages carry the
// signature's hash: no rank in a column completes the second level unless all ranks of all hosts have the
// same signature. A host whose ranks agree always runs the last level, because its ranks without a column
// wait there. If a difference was found meanwhile, the ranks in columns run the last level with another
// signature (refuse_last()), so the ranks without a column detect the difference, too. Independent of
// threads. A Levels object points into itself.
#pragma once

#include <weft/parallel/collectives/internal/shm/shared_space.h>
#include <weft/parallel/collectives/operation/internal/collective.h>
#include <weft/parallel/collectives/plan/internal/choice.h>

namespace weft::collectives {

// For each host, its ranks in ascending order. The place of a rank is its index among the ranks of its host.
struct WEFT_EXPORT Hosts {
  // host_of_rank: the host's name of each rank. nullopt: all ranks are on one host, or each is on a separate
  // host.
  static std::optional<Hosts> of(const std::vector<std::string>& host_of_rank, int rank);

  std::vector<std::vector<int>> ranks;
  int host = 0, index = 0;  // this rank's host, and its place there
  int columns = 0;          // as many as the smallest host has ranks

  // The number of hosts, and of the ranks of this host.
  int count() const { return static_cast<int>(ranks.size()); }
  int here() const { return static_cast<int>(ranks[static_cast<std::size_t>(host)].size()); }
  // The host of a rank of the group, and its place among the ranks of that host.
  int host_of(int rank) const;
  int index_of(int rank) const;
  // Whether this rank is in a column and, if so, the rank of its column on another host.
  bool in_column() const { return index < columns; }
  int in_column(int host) const {
    return ranks[static_cast<std::size_t>(host)][static_cast<std::size_t>(index)];
  }
  // The column that carries the blocks of a host's index-th rank.
  int column_of(int index) const { return index % columns; }
};

// Blocks of all ranks, ordered by column, then by host, then by place on the host. Pure.
struct WEFT_EXPORT BlocksByColumn {
  // blocks: the block of each rank, by rank.
  BlocksByColumn(const Hosts& hosts, const std::vector<Range>& blocks);

  // One rank's block, in elements.
  struct Piece {
    Range block;     // in the order by rank
    std::size_t at;  // its beginning in the order by column
  };

  std::vector<Piece> pieces;   // of all ranks, in the order by column
  std::vector<Range> columns;  // the part of each column
  std::vector<std::vector<Range>>
      sections;          // for each column: the part of each host, from the beginning of the column
  bool in_order = true;  // the order by column equals the order by rank
};

// Whether the operation runs in levels; otherwise it runs as a plan over all ranks.
WEFT_EXPORT bool has_levels(Operation operation);

struct WEFT_EXPORT Levels {
  Levels(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  Levels(const Levels&) = delete;
  Levels& operator=(const Levels&) = delete;

  // Call it if the ranks' signatures differ: the last level of this rank then moves no data, and its
  // signature differs from that of all ranks that did not call refuse_last().
  void refuse_last();

  Collective first, last;  // the first and the last level, which run among the ranks of this host
  // The second level, which runs among the ranks of the column, by host. Only used if this rank is in a
  // column.
  Layout between;
  PlanMemory memory;  // of `between`

 private:
  void reduce(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  void broadcast(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  void all_gather(const Collective& collective, const Hosts& hosts, SharedSpace& space);
  void reduce_scatter(const Collective& collective, const Hosts& hosts, SharedSpace& space);
};

}  // namespace weft::collectives

// plan_exchange(): plans which elements of a sharded state each rank sends to each other rank, so that each
// rank gets the slices that it wants. A pure function, with the same result on all ranks for equal arguments.
#pragma once

#include <weft/parallel/sharded/checkpoint/runs.h>
#include <weft/parallel/sharded/checkpoint/writer_plan.h>
#include <weft/rpc/codec/struct_codec.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::elastic::detail {

// The slices of one worker's shard that a rank has.
struct ShardIndex {
  std::string owner;  // whose shard it is
  std::vector<sharded::SliceRange> slices;
};
WEFT_CODEC(ShardIndex, owner, slices)

struct RankIndex {
  std::vector<ShardIndex> shards = {};
  std::vector<std::string> workers = {};  // their shards together are the whole state
  std::map<std::string, std::string> notes = {};
  std::vector<std::string> names = {};  // of all tensors of the whole state
};
WEFT_CODEC(RankIndex, shards, workers, notes, names)

struct ExchangePiece {
  int from = 0, to = 0;              // ranks
  std::size_t shard = 0;             // of the sender
  std::string name;                  // of the tensor
  sharded::SharedElements elements;  // positions in the receiver's and in the sender's tensor
};

// A rank gets no elements that it has itself. failed_precondition: no rank has some of the elements (the
// error names the workers whose shards are missing, or the tensor if no shard is missing), or ranks have
// different sizes or types for one name.
WEFT_EXPORT std::vector<ExchangePiece> plan_exchange(
    const std::vector<RankIndex>& ranks, const std::vector<std::vector<sharded::SliceRange>>& wanted);

}  // namespace weft::elastic::detail

// plan_exchange(): which rank sends which elements to which one, so that each rank gets the slices that it
// wants of a state whose slices the ranks have. Pure data; the same on all ranks for equal arguments.
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

// What a rank has of one worker's shard.
struct ShardIndex {
  std::string owner;  // whose shard it is
  std::vector<sharded::SliceRange> slices;
};
WEFT_CODEC(ShardIndex, owner, slices)

struct RankIndex {
  std::vector<ShardIndex> shards = {};
  std::vector<std::string> workers = {};  // whose shards together are the whole state
  std::map<std::string, std::string> notes = {};
  std::vector<std::string> names = {};  // of all tensors of the whole state
};
WEFT_CODEC(RankIndex, shards, workers, notes, names)

struct ExchangePiece {
  int from = 0, to = 0;              // ranks
  std::size_t shard = 0;             // of the sender
  std::string name;                  // of the tensor
  sharded::SharedElements elements;  // positions in the tensor, of the receiver and of the sender
};

// A rank that has elements itself gets them from no other one. failed_precondition: no rank has some of the
// elements, naming the workers whose shards are missing, or the tensor if no shard is missing; ranks have
// different sizes or types for one name.
WEFT_EXPORT std::vector<ExchangePiece> plan_exchange(
    const std::vector<RankIndex>& ranks, const std::vector<std::vector<sharded::SliceRange>>& wanted);

}  // namespace weft::elastic::detail

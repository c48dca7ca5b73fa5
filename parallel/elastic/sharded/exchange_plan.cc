#include <weft/parallel/elastic/sharded/exchange_plan.h>

#include <weft/rpc/core/error.h>

#include <functional>
#include <numeric>
#include <set>

namespace weft::elastic::detail {
namespace {

using sharded::Positions;
using sharded::Runs;
using sharded::SliceRange;

Runs runs_of(const SliceRange& range) {
  return range.runs.value_or(Runs::all(
      std::accumulate(range.sizes.begin(), range.sizes.end(), std::int64_t{1}, std::multiplies<>())));
}

struct HeldSlice {
  int rank;
  std::size_t shard;
  const SliceRange* range;
};

[[noreturn]] void refuse_exchange(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::failed_precondition, "elastic: " + why);
}

// "Float[4, 8]"
std::string type_text(const SliceRange& range) {
  std::string sizes;
  for (const std::int64_t size : range.sizes) sizes += (sizes.empty() ? "" : ", ") + std::to_string(size);
  return range.dtype + "[" + sizes + "]";
}

[[noreturn]] void report_lost(const std::vector<RankIndex>& ranks, const SliceRange& tensor) {
  std::set<std::string> lost;
  for (const RankIndex& rank : ranks) lost.insert(rank.workers.begin(), rank.workers.end());
  for (const RankIndex& rank : ranks)
    for (const ShardIndex& shard : rank.shards) lost.erase(shard.owner);
  if (lost.empty())
    refuse_exchange("no worker has all elements of " + tensor.name +
                    ", expected equal modules and optimizers on all workers");
  std::string names;
  for (const std::string& name : lost) names += (names.empty() ? "" : ", ") + name;
  refuse_exchange("the last commit of the sharded state is lost: no worker has the shards of " + names +
                  ", expected fewer deaths between two commits than ShardedPartOptions::copies + 1: load a "
                  "checkpoint, and commit more copies");
}

}  // namespace

std::vector<ExchangePiece> plan_exchange(const std::vector<RankIndex>& ranks,
                                         const std::vector<std::vector<SliceRange>>& wanted) {
  std::map<std::string, std::vector<HeldSlice>> held;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    for (std::size_t shard = 0; shard < ranks[rank].shards.size(); ++shard)
      for (const SliceRange& range : ranks[rank].shards[shard].slices)
        held[range.name].push_back({static_cast<int>(rank), shard, &range});
  std::vector<ExchangePiece> pieces;
  for (std::size_t to = 0; to < wanted.size(); ++to)
    for (const SliceRange& want : wanted[to]) {
      const Runs runs = runs_of(want);
      std::vector<Positions> missing;
      if (want.begin < want.end) missing.emplace_back(want.begin, want.end);
      const auto take = [&](const HeldSlice& slice) {
        if (slice.range->sizes != want.sizes || slice.range->dtype != want.dtype)
          refuse_exchange(want.name + " is " + type_text(*slice.range) + " on rank " +
                          std::to_string(slice.rank) + " and " + type_text(want) + " on rank " +
                          std::to_string(to) + ", expected the same on all ranks");
        for (const sharded::SharedElements& elements :
             take_shared(runs, missing, runs_of(*slice.range), {slice.range->begin, slice.range->end}))
          pieces.push_back({slice.rank, static_cast<int>(to), slice.shard, want.name, elements});
      };
      const std::vector<HeldSlice>& slices = held[want.name];
      for (const HeldSlice& slice : slices)
        if (slice.rank == static_cast<int>(to)) take(slice);
      for (const HeldSlice& slice : slices)
        if (!missing.empty() && slice.rank != static_cast<int>(to)) take(slice);
      if (!missing.empty()) report_lost(ranks, want);
    }
  return pieces;
}

}  // namespace weft::elastic::detail

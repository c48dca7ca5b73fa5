// Ranks of the harness that are members of a weft job and form a group. Header only: the harness does not
// depend on weft. Thread-safety: functions without state.
#pragma once

#include "bench/harness/process.h"
#include "bench/harness/ranks.h"

#include <weft/parallel/collectives/collectives_layer.h>
#include <weft/parallel/collectives/group.h>
#include <weft/rpc/job/job.h>
#include <weft/rpc/tensor/layers.h>

#include <ATen/Parallel.h>
#include <ATen/ops/zeros.h>

#include <filesystem>
#include <string>

namespace weft::bench {

// The options of a rank of a job with this store, on the loopback device.
inline rpc::MemberOptions member_options(const RankEnd& end, const std::string& store, int ranks) {
  rpc::MemberOptions options{{.name = "rank" + std::to_string(end.rank()), .listen = {"tcp://127.0.0.1:0"}}};
  options.rendezvous = {.store = "file://" + store,
                        .rank = static_cast<std::size_t>(end.rank()),
                        .world_size = static_cast<std::size_t>(ranks)};
  return options;
}

inline rpc::Layers group_layers(rpc::Layers below = tensor::layers()) {
  below.push_back(collectives::layer());
  return below;
}

// For Rounds::run(): tells all ranks of the group what rank 0 has decided.
inline auto tell_all(const collectives::Group& group) {
  return [group, count = at::zeros({1}, at::kLong)](std::size_t next) {
    count.fill_(static_cast<std::int64_t>(next));
    group.broadcast(count, 0).get();
    return static_cast<std::size_t>(count.item<std::int64_t>());
  };
}

// Measures ranks with a store that is removed at the end. body: called in the process of each rank.
inline Outcome measure_members(int ranks, const Setting& setting,
                               const std::function<void(const std::string& store, RankEnd& end)>& body) {
  const std::string store = scratch_path(".store");
  const Outcome outcome = measure_ranks(ranks, setting, [&](RankEnd& end) { body(store, end); });
  std::filesystem::remove(store);
  return outcome;
}

}  // namespace weft::bench

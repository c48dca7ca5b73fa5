// Measures the time for which a save of sharded::Checkpoints delays training, and the time to copy the same
// amount of memory.
#include "bench/ddp/weft_rank.h"

#include <weft/parallel/sharded/checkpoint/checkpoints.h>

#include <ATen/ops/ones.h>

#include <cstring>
#include <filesystem>

namespace weft::bench {
namespace {

constexpr int tensors = 16;
constexpr std::int64_t elements = 1 << 20;  // per tensor and rank

sharded::SlicedState state_of(const collectives::Group& group) {
  sharded::SlicedState state;
  for (int i = 0; i < tensors; ++i)
    state.tensors["tensor" + std::to_string(i)] = {
        {group.size() * elements}, group.rank() * elements, at::ones({elements})};
  return state;
}

// Measures blocking(). Then runs rest() before the next measurement.
void measure_apart(RankEnd& end, const collectives::Group& group, const std::function<void()>& blocking,
                   const std::function<void()>& rest) {
  LatencyMeter meter(end.budget());
  for (bool more = true; more;) {
    group.barrier().get();
    meter.begin();
    blocking();
    more = meter.end();
    rest();
    more = group.broadcast_object(more, 0).get();
  }
  if (end.rank() == 0) end.report(meter.figures());
}

std::optional<Contender> contender(
    const char* name, const Work& work,
    const std::function<void(RankEnd&, const collectives::Group&, const std::filesystem::path&)>& run) {
  if (work.task != Task::checkpoint) return std::nullopt;
  return rank_contender(name, work, [work, run](const std::string& store, RankEnd& end) {
    const std::filesystem::path folder = store + ".checkpoints";
    as_rank(work, store, end, [&](const collectives::Group& group) {
      run(end, group, folder);
      group.barrier().get();
    });
    if (end.rank() == 0) std::filesystem::remove_all(folder);
  });
}

}  // namespace

std::optional<Contender> weft_checkpoint_peer(const Work& work) {
  return contender("weft", work, [](RankEnd& end, const collectives::Group& group, const auto& folder) {
    const sharded::SlicedState state = state_of(group);
    sharded::Checkpoints checkpoints(group, folder);
    rpc::Future<void> saved;
    std::int64_t step = 0;
    measure_apart(end, group, [&] { saved = checkpoints.save(++step, state); }, [&] { saved.get(); });
  });
}

std::optional<Contender> memcpy_peer(const Work& work) {
  return contender("memcpy", work, [](RankEnd& end, const collectives::Group& group, const auto&) {
    const sharded::SlicedState from = state_of(group), to = state_of(group);
    measure_apart(
        end, group,
        [&] {
          for (const auto& [name, each] : from.tensors)
            std::memcpy(to.tensors.at(name).values.mutable_data_ptr(), each.values.const_data_ptr(),
                        each.values.nbytes());
        },
        [] {});
  });
}

}  // namespace weft::bench

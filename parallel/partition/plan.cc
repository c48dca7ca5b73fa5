#include <weft/parallel/partition/plan.h>

#include <weft/parallel/schedule/generators.h>
#include <weft/rpc/core/error.h>

#include <algorithm>
#include <set>
#include <string>

namespace weft::partition {

std::optional<std::size_t> stage_on(const Partition& partition, int rank) {
  if (rank < 0)
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     "stage_on: rank " + std::to_string(rank) + ", expected at least 0");
  for (std::size_t stage = 0; stage < partition.stages.size(); ++stage) {
    const std::vector<int>& ranks = partition.stages[stage].ranks;
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end()) return stage;
  }
  return std::nullopt;
}

std::vector<schedule::Edge> edges_of(const Profile& profile, const Partition& partition) {
  std::vector<int> stage_of_layer(profile.layers.size());
  for (std::size_t stage = 0; stage < partition.stages.size(); ++stage)
    for (const std::size_t layer : partition.stages[stage].layers)
      stage_of_layer[layer] = static_cast<int>(stage);
  std::set<schedule::Edge> edges;
  for (const Edge& edge : profile.edges)
    if (stage_of_layer[edge.from] != stage_of_layer[edge.to])
      edges.insert({stage_of_layer[edge.from], stage_of_layer[edge.to]});
  return {edges.begin(), edges.end()};
}

// The generator numbers the ranks by stage. This function gives each list to the rank that the partition has
// for it.
schedule::Schedule schedule_of(const Profile& profile, const Partition& partition, int microbatches) {
  schedule::PipedreamOptions options;
  int ranks = 0, last = 0;
  for (const Stage& stage : partition.stages) {
    options.replicas.push_back(static_cast<int>(stage.ranks.size()));
    ranks += options.replicas.back();
    last = std::max(last, *std::max_element(stage.ranks.begin(), stage.ranks.end()));
  }
  schedule::Schedule made = schedule::pipedream({.ranks = ranks, .microbatches = microbatches}, options);
  std::vector<std::vector<schedule::Action>> lists(static_cast<std::size_t>(last) + 1);
  for (std::size_t stage = 0; stage < partition.stages.size(); ++stage)
    for (std::size_t replica = 0; replica < partition.stages[stage].ranks.size(); ++replica) {
      int& rank = made.placement[stage][replica];
      const int own = partition.stages[stage].ranks[replica];
      lists[static_cast<std::size_t>(own)] = std::move(made.ranks[static_cast<std::size_t>(rank)]);
      rank = own;
    }
  made.ranks = std::move(lists);
  made.edges = edges_of(profile, partition);
  return made;
}

schedule::Costs costs_of(const Partition& partition) {
  schedule::Costs costs;
  costs.stages.clear();
  for (const Stage& stage : partition.stages)
    costs.stages.push_back({.forward = stage.forward_seconds,
                            .input_gradient = stage.backward_seconds,
                            .weight_gradient = 0,
                            .recompute = stage.forward_seconds,
                            .activation = stage.activation_bytes,
                            .kept_for_weight_gradient = stage.activation_bytes,
                            .checkpoint = 0});
  return costs;
}

}  // namespace weft::partition

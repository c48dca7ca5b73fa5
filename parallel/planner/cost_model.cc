#include <weft/parallel/planner/cost_model.h>

#include <algorithm>
#include <map>
#include <utility>

namespace weft::planner {

double message_seconds(const Link& link, double bytes) {
  return bytes > 0 ? link.latency + bytes / link.bytes_per_second : 0;
}

double all_reduce_seconds(const Levels& levels, double bytes) {
  double seconds = 0;
  for (const Ring& ring : {levels.local, levels.across})
    seconds += 2 * (ring.ranks - 1) * message_seconds(ring.link, bytes / ring.ranks);
  return seconds;
}

Levels levels_of(const Machine& machine, int size, int stride) {
  std::map<int, std::map<int, int>> ranks;  // by the group's first rank and by host
  for (int rank = 0; rank < machine.ranks(); ++rank)
    ++ranks[rank / (size * stride) * (size * stride) + rank % stride][rank / machine.ranks_per_host];
  Levels levels{.local = {{machine.latency, machine.bytes_per_second}}};
  std::map<int, int> leaving;  // by host: groups that have ranks on other hosts too
  for (const auto& [first, hosts] : ranks) {
    levels.across.ranks = std::max(levels.across.ranks, static_cast<int>(hosts.size()));
    for (const auto& [host, here] : hosts) {
      levels.local.ranks = std::max(levels.local.ranks, here);
      if (hosts.size() > 1) ++leaving[host];
    }
  }
  int sharing = 1;
  for (const auto& [host, groups] : leaving) sharing = std::max(sharing, groups);
  levels.across.link = {machine.host_latency,
                        std::min(machine.bytes_per_second, machine.host_bytes_per_second / sharing)};
  return levels;
}

Link pipeline_link(const Machine& machine, const Grid& grid, int from, int to) {
  const int stride = grid.pipeline_stride();
  std::vector<int> sent(static_cast<std::size_t>(machine.hosts)), received = sent;  // messages between hosts
  int sharing = 0;
  for (int rank = 0; rank < machine.ranks(); ++rank) {
    if (rank / stride % grid.pipeline != from) continue;
    const int host = rank / machine.ranks_per_host;
    const int peer = (rank + (to - from) * stride) / machine.ranks_per_host;
    if (host == peer) continue;
    sharing = std::max(
        {sharing, ++sent[static_cast<std::size_t>(host)], ++received[static_cast<std::size_t>(peer)]});
  }
  if (sharing == 0) return {machine.latency, machine.bytes_per_second};
  return {machine.host_latency, std::min(machine.bytes_per_second, machine.host_bytes_per_second / sharing)};
}

RankModel rank_model(const Model& model, int microbatch, int tensor, const Levels& tensor_levels) {
  const double samples = static_cast<double>(microbatch) / model.microbatch;
  RankModel made;
  std::vector<std::size_t> places(model.profile.layers.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    places[i] = made.profile.layers.size();
    if (partition::is_input(model.profile, i)) continue;
    partition::Layer layer = model.profile.layers[i];
    const double share = !model.split.empty() && model.split[i] ? 1.0 / tensor : 1;
    layer.activation_bytes *= samples;
    layer.parameter_bytes *= share;
    const double reductions =
        share < 1 ? model.reductions * all_reduce_seconds(tensor_levels, layer.activation_bytes) : 0;
    layer.forward_ms = layer.forward_ms * samples * share + 1000 * reductions;
    layer.backward_ms = layer.backward_ms * samples * share + 1000 * reductions;
    const double output = layer.activation_bytes;
    const double kept = model.kept_bytes.empty() ? output : model.kept_bytes[i] * samples;
    made.kept_bytes.push_back(kept > output ? output + (kept - output) * share : kept);
    made.tensor_seconds.push_back(reductions);
    made.profile.layers.push_back(std::move(layer));
  }
  for (const partition::Edge& edge : model.profile.edges)
    if (!partition::is_input(model.profile, edge.from))
      made.profile.edges.push_back({places[edge.from], places[edge.to]});
  return made;
}

}  // namespace weft::planner

// EveryPartition: the lowest time of pipedream(), found by computing the time of every partition of a small
// graph.
//
// It shares no code with the dynamic program. Stages are sets of layers as bits, costs are computed by the
// formulas in pipedream.h, and every placement of a sequence of stages on the units of a level is tried. It
// can handle up to about 8 layers.
#pragma once

#include <weft/parallel/partition/pipedream.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <tuple>

namespace weft::partition::testing {

class EveryPartition {
 public:
  EveryPartition(const Profile& profile, std::span<const Level> levels, const PipeDreamOptions& options)
      : profile_(profile), levels_(levels), options_(options) {}

  double best_seconds() {
    return best(levels_.size() - 1, 0, all(), 0);
  }  // infinite: no partition is possible

 private:
  using Set = std::uint32_t;
  static constexpr double never = std::numeric_limits<double>::infinity();

  Set all() const { return (Set{1} << profile_.layers.size()) - 1; }
  static bool has(Set set, std::size_t layer) { return (set >> layer & 1) != 0; }

  // Returns whether no layer of the set reads a layer outside of it.
  bool closed(Set set) const {
    return std::none_of(profile_.edges.begin(), profile_.edges.end(),
                        [&](const Edge& edge) { return has(set, edge.to) && !has(set, edge.from); });
  }

  template <class Of>
  double sum(Set set, Of of) const {
    double total = 0;
    for (std::size_t layer = 0; layer < profile_.layers.size(); ++layer)
      if (has(set, layer)) total += of(profile_.layers[layer]);
    return total;
  }
  double parameters(Set set) const {
    return sum(set, [](const Layer& layer) { return layer.parameter_bytes; });
  }

  Set before(std::size_t layer) const {  // all layers on which the layer depends
    Set found = 0;
    for (const Edge& edge : profile_.edges)
      if (edge.to == layer) found |= before(edge.from) | Set{1} << edge.from;
    return found;
  }

  // The bytes that the layers of the set send to other layers, as the objective counts them.
  double transferred(Set set) const {
    Set sent = 0;
    for (std::size_t layer = 0; layer < profile_.layers.size(); ++layer) {
      if (!has(set, layer)) continue;
      bool maximal = true;
      for (const Edge& edge : profile_.edges) {
        if (edge.from == layer && has(set, edge.to)) maximal = false;
        if (edge.from == layer && !has(set, edge.to)) sent |= Set{1} << layer;
      }
      if (options_.objective == Objective::pipedream_paper || !maximal) continue;
      sent |= Set{1} << layer;
      for (const Edge& edge : profile_.edges)
        if (has(before(layer), edge.from) && edge.to != layer && !has(before(layer), edge.to))
          sent |= Set{1} << edge.from;
    }
    return sum(sent, [](const Layer& layer) { return layer.activation_bytes; });
  }

  double stage_seconds(std::size_t level, double unit, double weights, double m, bool first) const {
    const double bandwidth = levels_[level].bytes_per_second;
    if (options_.objective == Objective::pipedream_paper)
      return std::max(unit / m, 2 * (m - 1) * weights / (bandwidth * m));
    const double below = level > 0 && first ? static_cast<double>(levels_[level - 1].units) : 1;
    return (unit + 4 * (m - 1) * weights / (m * bandwidth) / below) / m;
  }

  double transfer_seconds(std::size_t level, double bytes, double m) const {
    const double seconds =
        2 * bytes / levels_[level].bytes_per_second / options_.activation_compression.value_or(1);
    if (options_.objective == Objective::pipedream_paper) return seconds;
    return options_.activation_compression ? seconds / m : 0;
  }

  double workers(std::size_t level) const {  // of one unit
    double product = 1;
    for (std::size_t below = 0; below < level; ++below) product *= static_cast<double>(levels_[below].units);
    return product;
  }

  // The lowest time for the layers of `end` that are not in `begin`, on all units of a level. workers_after:
  // the number of later workers for each of them.
  double best(std::size_t level, Set begin, Set end, double workers_after) {
    const auto [place, added] = known_.try_emplace({level, begin, end, workers_after}, never);
    if (added) {
      double found = never;
      place_stages(level, begin, begin, end, 0, 0, workers_after, found);
      known_[{level, begin, end, workers_after}] = found;
      return found;
    }
    return place->second;
  }

  // Tries every next stage after stages with the layers `done`, `used` units and the time `seconds`.
  void place_stages(std::size_t level, Set begin, Set done, Set end, std::size_t used, double seconds,
                    double workers_after, double& found) {
    if (done == end) {
      if (used == levels_[level].units || options_.fewer_workers) found = std::min(found, seconds);
      return;
    }
    const std::size_t units = levels_[level].units;
    for (Set next = done + 1; next <= end; ++next) {
      if ((done & ~next) != 0 || (next & ~end) != 0 || !closed(next)) continue;
      const bool first = done == begin;
      for (std::size_t from = used; from < units; ++from) {  // idle units may precede the stage
        if (from > used && (first || !options_.fewer_workers)) break;
        for (std::size_t m = 1; from + m <= units && (m == 1 || !options_.straight); ++m) {
          const auto replicas = static_cast<double>(m);
          const double unit = unit_seconds(level, done, next, from + m, replicas, workers_after);
          double time = stage_seconds(level, unit, parameters(next & ~done), replicas, first);
          if (!first) {
            time = std::max(time, transfer_seconds(level, transferred(done), replicas));
            if (next != all() && options_.objective == Objective::pipedream_code)
              time = std::max(time, transfer_seconds(level, transferred(next), replicas));
          }
          if (std::isfinite(time))
            place_stages(level, begin, next, end, from + m, std::max(seconds, time), workers_after, found);
        }
      }
    }
  }

  double unit_seconds(std::size_t level, Set begin, Set end, std::size_t used, double replicas,
                      double workers_after) {
    const double later = static_cast<double>(levels_[level].units - used) * workers(level);
    const double after = options_.memory_bytes ? (later + workers_after) / replicas : 0;
    if (level > 0) return best(level - 1, begin, end, after);
    const double bytes =
        sum(end & ~begin, [](const Layer& layer) { return layer.parameter_bytes + layer.activation_bytes; });
    if (options_.memory_bytes && bytes * std::ceil(1 + after - 1e-9) > *options_.memory_bytes) return never;
    return sum(end & ~begin,
               [](const Layer& layer) { return (layer.forward_ms + layer.backward_ms) / 1000; });
  }

  const Profile& profile_;
  std::span<const Level> levels_;
  const PipeDreamOptions& options_;
  std::map<std::tuple<std::size_t, Set, Set, double>, double> known_;
};

}  // namespace weft::partition::testing

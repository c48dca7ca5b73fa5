#include <weft/parallel/partition/profile.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <queue>
#include <unordered_set>
#include <utility>

namespace weft::partition {
namespace {

[[noreturn]] void refuse_profile(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, "profile: " + why);
}

void check_layers(const Profile& profile) {
  if (profile.layers.empty()) refuse_profile("it has no layers, expected at least one");
  std::unordered_set<std::string> names;
  for (const Layer& layer : profile.layers) {
    if (!names.insert(layer.name).second)
      refuse_profile("two layers have the name '" + layer.name + "', expected unique names");
    const std::pair<const char*, double> figures[] = {{"forward time", layer.forward_ms},
                                                      {"backward time", layer.backward_ms},
                                                      {"activation size", layer.activation_bytes},
                                                      {"parameter size", layer.parameter_bytes}};
    for (const auto& [what, figure] : figures)
      if (!std::isfinite(figure) || figure < 0)
        refuse_profile("the " + std::string(what) + " of layer '" + layer.name + "' is " +
                       std::to_string(figure) + ", expected a finite number of at least 0");
  }
}

// Walks backward from a layer that still waits for another layer. Such a walk must return to a layer.
[[noreturn]] void refuse_cycle(const Profile& profile, const std::vector<std::size_t>& waits) {
  std::vector<std::size_t> before(profile.layers.size());
  for (const Edge& edge : profile.edges)
    if (waits[edge.from] > 0) before[edge.to] = edge.from;
  std::size_t layer = 0;
  while (waits[layer] == 0) ++layer;
  std::vector<std::size_t> path;
  for (; std::find(path.begin(), path.end(), layer) == path.end(); layer = before[layer])
    path.push_back(layer);
  std::string names = profile.layers[layer].name;
  for (auto each = path.rbegin(); each != path.rend(); ++each) {
    names += " -> " + profile.layers[*each].name;
    if (*each == layer) break;
  }
  refuse_profile("the edges form a cycle: " + names);
}

}  // namespace

Profile sequence(std::vector<Layer> layers) {
  Profile profile{std::move(layers), {}};
  for (std::size_t i = 1; i < profile.layers.size(); ++i) profile.edges.push_back({i - 1, i});
  return profile;
}

bool is_input(const Profile& profile, std::size_t layer) {
  return profile.layers[layer].description.starts_with("Input") &&
         std::none_of(profile.edges.begin(), profile.edges.end(),
                      [&](const Edge& edge) { return edge.to == layer; });
}

std::vector<std::size_t> topological_order(const Profile& profile) {
  check_layers(profile);
  const std::size_t layers = profile.layers.size();
  std::vector<std::vector<std::size_t>> readers(layers);
  std::vector<std::size_t> waits(layers);  // edges from layers that are not in the order yet
  for (const Edge& edge : profile.edges) {
    if (edge.from >= layers || edge.to >= layers)
      refuse_profile("edge " + std::to_string(edge.from) + " -> " + std::to_string(edge.to) +
                     " names a layer that does not exist, expected indices below " + std::to_string(layers));
    readers[edge.from].push_back(edge.to);
    ++waits[edge.to];
  }
  std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
  for (std::size_t i = 0; i < layers; ++i)
    if (waits[i] == 0) ready.push(i);
  std::vector<std::size_t> order;
  while (!ready.empty()) {
    const std::size_t layer = ready.top();
    ready.pop();
    order.push_back(layer);
    for (const std::size_t reader : readers[layer])
      if (--waits[reader] == 0) ready.push(reader);
  }
  if (order.size() < layers) refuse_cycle(profile, waits);
  return order;
}

double compute_seconds(const Profile& profile, std::size_t layer) {
  if (is_input(profile, layer)) return 0;
  return (profile.layers[layer].forward_ms + profile.layers[layer].backward_ms) / 1000;
}

}  // namespace weft::partition

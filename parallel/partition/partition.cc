#include <weft/parallel/partition/partition.h>

#include <weft/rpc/core/error.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace weft::partition {
namespace {

[[noreturn]] void refuse_cut(const std::string& why) {
  throw rpc::Error(rpc::ErrorKind::invalid_argument, why);
}

// begins: the places in the order at which the stages after the first begin.
Partition cut_at(const Profile& profile, const std::vector<std::size_t>& order,
                 std::vector<std::size_t> begins) {
  begins.push_back(order.size());
  Partition partition;
  std::size_t begin = 0;
  for (const std::size_t end : begins) {
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = order.begin() + static_cast<std::ptrdiff_t>(end);
    partition.stages.push_back(stage_of(profile, {first, last}));
    partition.stages.back().ranks = {static_cast<int>(partition.stages.size()) - 1};
    const double seconds = partition.stages.back().compute_seconds();
    partition.total_seconds += seconds;
    partition.bottleneck_seconds = std::max(partition.bottleneck_seconds, seconds);
    begin = end;
  }
  return partition;
}

std::size_t place_of(const Profile& profile, const std::vector<std::size_t>& order, const std::string& name) {
  const auto place_if = [&](auto matches) {
    return std::find_if(order.begin(), order.end(),
                        [&](std::size_t i) { return matches(profile.layers[i]); });
  };
  auto found = place_if([&](const Layer& layer) { return layer.name == name; });
  if (found == order.end()) {
    const auto described = [&](const Layer& layer) { return layer.description == name; };
    const auto count = std::count_if(profile.layers.begin(), profile.layers.end(), described);
    if (count > 1)
      refuse_cut("cut_by_name: " + std::to_string(count) + " layers have the description '" + name +
                 "', expected one: use a layer's name");
    found = place_if(described);
  }
  if (found == order.end())
    refuse_cut("cut_by_name: the profile has no layer '" + name + "', expected a name such as '" +
               profile.layers[order.front()].name + "'");
  return static_cast<std::size_t>(found - order.begin());
}

std::string formatted(const char* format, double value) {
  char text[64];
  std::snprintf(text, sizeof text, format, value);
  return text;
}

std::string bytes_text(double bytes) {
  static constexpr const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  for (; bytes >= 1024 && unit + 1 < std::size(units); ++unit) bytes /= 1024;
  return formatted(unit == 0 ? "%.0f " : "%.1f ", bytes) + units[unit];
}

// "0-3,8-11"
std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ",") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string names_text(const Profile& profile, const std::vector<std::size_t>& layers) {
  const std::string& first = profile.layers[layers.front()].name;
  return layers.size() == 1 ? first : first + " .. " + profile.layers[layers.back()].name;
}

// Columns with two spaces between them: right-aligned, except for the last one.
std::string table_of(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows)
    for (std::size_t i = 0; i + 1 < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i)
      text += (i == 0 ? "" : "  ") + std::string(std::max(widths[i], row[i].size()) - row[i].size(), ' ') +
              row[i];
    text += '\n';
  }
  return text;
}

}  // namespace

std::size_t Partition::workers() const {
  std::size_t sum = 0;
  for (const Stage& stage : stages) sum += stage.ranks.size();
  return sum;
}

double Partition::speed_up() const { return bottleneck_seconds > 0 ? total_seconds / bottleneck_seconds : 1; }

Stage stage_of(const Profile& profile, std::vector<std::size_t> layers) {
  Stage stage;
  stage.layers = std::move(layers);
  std::vector<bool> inside(profile.layers.size()), read(profile.layers.size());
  for (const std::size_t i : stage.layers) inside[i] = true;
  for (const Edge& edge : profile.edges)
    if (inside[edge.from] && !inside[edge.to]) read[edge.from] = true;
  for (const std::size_t i : stage.layers) {
    const Layer& layer = profile.layers[i];
    if (read[i]) stage.sent_bytes += layer.activation_bytes;
    if (is_input(profile, i)) continue;
    stage.forward_seconds += layer.forward_ms / 1000;
    stage.backward_seconds += layer.backward_ms / 1000;
    stage.activation_bytes += layer.activation_bytes;
    stage.parameter_bytes += layer.parameter_bytes;
  }
  return stage;
}

Partition cut_by_count(const Profile& profile, std::span<const std::size_t> layers) {
  const auto order = topological_order(profile);
  std::vector<std::size_t> begins;
  std::size_t begin = 0;
  for (const std::size_t count : layers) {
    if (count == 0) refuse_cut("cut_by_count: a stage has 0 layers, expected at least 1");
    if (begin > 0) begins.push_back(begin);
    if (count > order.size() - begin) {
      begin = order.size() + 1;
      break;
    }
    begin += count;
  }
  if (begin != order.size())
    refuse_cut("cut_by_count: the stages have " + std::string(begin > order.size() ? "more than " : "") +
               std::to_string(std::min(begin, order.size())) + " layers together, expected the profile's " +
               std::to_string(order.size()));
  return cut_at(profile, order, std::move(begins));
}

Partition cut_evenly(const Profile& profile, std::size_t stages) {
  const std::size_t layers = profile.layers.size();
  if (stages == 0 || stages > layers)
    refuse_cut("cut_evenly: " + std::to_string(stages) + " stages, expected 1 to " + std::to_string(layers) +
               ", the number of layers");
  std::vector<std::size_t> counts(stages, layers / stages);
  for (std::size_t stage = 0; stage < layers % stages; ++stage) ++counts[stage];
  return cut_by_count(profile, counts);
}

Partition cut_by_name(const Profile& profile, std::span<const std::string> names) {
  const auto order = topological_order(profile);
  std::vector<std::size_t> begins;
  for (const std::string& name : names) {
    const std::size_t place = place_of(profile, order, name);
    if (place == 0)
      refuse_cut("cut_by_name: '" + name +
                 "' is the first layer, expected a later one: a stage begins there in any case");
    if (!begins.empty() && place <= begins.back())
      refuse_cut("cut_by_name: '" + name + "' does not come after '" +
                 profile.layers[order[begins.back()]].name +
                 "', expected names in topological order, each once");
    begins.push_back(place);
  }
  return cut_at(profile, order, std::move(begins));
}

Profile with_stages(Profile profile, const Partition& partition) {
  for (std::size_t stage = 0; stage < partition.stages.size(); ++stage)
    for (const std::size_t layer : partition.stages[stage].layers) profile.layers[layer].stage = stage;
  return profile;
}

std::string to_text(const Profile& profile, const Partition& partition) {
  std::vector<std::vector<std::string>> rows = {{"stage", "ranks", "layers", "forward s", "backward s",
                                                 "parameters", "activations", "sends", "first .. last"}};
  for (const Stage& stage : partition.stages)
    rows.push_back({std::to_string(rows.size() - 1), ranks_text(stage.ranks),
                    std::to_string(stage.layers.size()), formatted("%.4g", stage.forward_seconds),
                    formatted("%.4g", stage.backward_seconds), bytes_text(stage.parameter_bytes),
                    bytes_text(stage.activation_bytes), bytes_text(stage.sent_bytes),
                    names_text(profile, stage.layers)});
  std::string text = table_of(rows) + "\nbottleneck " + formatted("%.6g", partition.bottleneck_seconds) +
                     " s\n" + "expected speed-up " + formatted("%.4g", partition.speed_up()) +
                     " over one worker";
  if (partition.data_parallel_seconds > 0 && partition.bottleneck_seconds > 0)
    text += ", " + formatted("%.4g", partition.data_parallel_seconds / partition.bottleneck_seconds) +
            " over data parallel";
  return text + '\n';
}

}  // namespace weft::partition

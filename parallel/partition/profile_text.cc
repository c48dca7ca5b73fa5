#include <weft/parallel/partition/profile_text.h>

#include <weft/rpc/core/error.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <set>
#include <unordered_map>
#include <utility>

namespace weft::partition {
namespace {

constexpr std::string_view white_space = " \t\r";

std::string_view trimmed(std::string_view text) {
  const std::size_t first = text.find_first_not_of(white_space);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(white_space) - first + 1);
}

std::vector<std::string_view> split_text(std::string_view text, std::string_view separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0;;) {
    const std::size_t end = text.find(separator, begin);
    parts.push_back(trimmed(text.substr(begin, end - begin)));
    if (end == std::string_view::npos) return parts;
    begin = end + separator.size();
  }
}

// Reads the lines of one text. Edges are resolved at the end, since they may precede their layers.
class ProfileReader {
 public:
  explicit ProfileReader(std::string_view source) : source_(source) {}

  void read_line(std::string_view line) {
    ++line_;
    if (trimmed(line).empty()) return;
    if (white_space.find(line.front()) == std::string_view::npos)
      read_layer(trimmed(line));
    else
      read_edge(trimmed(line));
  }

  Profile finish() {
    std::set<std::pair<std::size_t, std::size_t>> seen;
    for (const NamedEdge& edge : edges_) {
      line_ = edge.line;
      const std::size_t from = index_of(edge.from), to = index_of(edge.to);
      if (seen.emplace(from, to).second) profile_.edges.push_back({from, to});
    }
    try {
      topological_order(profile_);
    } catch (const rpc::Error& error) {
      throw rpc::Error(error.kind(), std::string(source_) + ": " + error.what());
    }
    return std::move(profile_);
  }

 private:
  struct NamedEdge {
    std::string_view from, to;
    std::size_t line;
  };

  [[noreturn]] void refuse(const std::string& why) const {
    throw rpc::Error(rpc::ErrorKind::invalid_argument,
                     std::string(source_) + ", line " + std::to_string(line_) + ": " + why);
  }

  double number(std::string_view text, std::string_view key) const {
    double value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size() || !std::isfinite(value) || value < 0)
      refuse(std::string(key) + " is '" + std::string(text) + "', expected a number of at least 0");
    return value;
  }

  double number_or_list(std::string_view text, std::string_view key) const {
    if (!text.starts_with('[') || !text.ends_with(']')) return number(text, key);
    double sum = 0;
    for (const std::string_view part : split_text(text.substr(1, text.size() - 2), ";"))
      sum += number(part, key);
    return sum;
  }

  void read_layer(std::string_view line) {
    const auto parts = split_text(line, " -- ");
    if (parts.size() != 3 && parts.size() != 4)
      refuse(
          "found " + std::to_string(parts.size()) +
          " fields, expected 'NAME -- DESCRIPTION -- FIGURES' and optionally ' -- stage_id=N'; edges begin "
          "with a tab");
    static constexpr std::array<std::string_view, 4> keys{"forward_compute_time", "backward_compute_time",
                                                          "activation_size", "parameter_size"};
    const auto figures = split_text(parts[2], ", ");
    if (figures.size() != keys.size())
      refuse("found " + std::to_string(figures.size()) + " figures, expected forward_compute_time, " +
             "backward_compute_time, activation_size and parameter_size");
    std::array<double, 4> values{};
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const std::size_t sign = figures[i].find('=');
      if (sign == std::string_view::npos || figures[i].substr(0, sign) != keys[i])
        refuse("found '" + std::string(figures[i]) + "', expected '" + std::string(keys[i]) + "=NUMBER'");
      values[i] = number_or_list(figures[i].substr(sign + 1), keys[i]);
    }
    Layer layer{std::string(parts[0]), std::string(parts[1]), values[0], values[1], values[2], values[3]};
    if (parts.size() == 4) layer.stage = stage_id(parts[3]);
    if (!places_.emplace(layer.name, profile_.layers.size()).second)
      refuse("found the name '" + layer.name + "' of an earlier layer, expected unique names");
    profile_.layers.push_back(std::move(layer));
  }

  std::size_t stage_id(std::string_view text) const {
    constexpr std::string_view key = "stage_id=";
    std::size_t stage = 0;
    if (text.starts_with(key)) {
      const char* begin = text.data() + key.size();
      const char* end = text.data() + text.size();
      if (const auto read = std::from_chars(begin, end, stage); read.ec == std::errc{} && read.ptr == end)
        return stage;
    }
    refuse("found '" + std::string(text) + "', expected 'stage_id=N'");
  }

  void read_edge(std::string_view line) {
    const auto ends = split_text(line, " -- ");
    if (ends.size() != 2)
      refuse("found an edge with " + std::to_string(ends.size()) +
             " names, expected 'NAME -- NAME'; layers begin without white space");
    edges_.push_back({ends[0], ends[1], line_});
  }

  std::size_t index_of(std::string_view name) const {
    const auto place = places_.find(std::string(name));
    if (place == places_.end())
      refuse("the edge names the layer '" + std::string(name) + "', expected a layer of the profile");
    return place->second;
  }

  std::string_view source_;
  std::size_t line_ = 0;
  Profile profile_;
  std::unordered_map<std::string, std::size_t> places_;
  std::vector<NamedEdge> edges_;
};

std::string number_text(double value) {
  char text[400];
  const int length = std::snprintf(text, sizeof text, "%.3f", value);
  double read = 0;
  std::from_chars(text, text + length, read);
  if (read == value) return {text, static_cast<std::size_t>(length)};
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}

}  // namespace

Profile parse_profile(std::string_view text, std::string_view source) {
  ProfileReader reader(source);
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    reader.read_line(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  }
  return reader.finish();
}

std::string to_text(const Profile& profile) {
  std::string text;
  for (const Layer& layer : profile.layers) {
    std::string description = layer.description;
    std::erase(description, '\n');  // as PipeDream does: modules print themselves on several lines
    text += layer.name + " -- " + description + " -- forward_compute_time=" + number_text(layer.forward_ms) +
            ", backward_compute_time=" + number_text(layer.backward_ms) +
            ", activation_size=" + number_text(layer.activation_bytes) +
            ", parameter_size=" + number_text(layer.parameter_bytes);
    if (layer.stage) text += " -- stage_id=" + std::to_string(*layer.stage);
    text += '\n';
  }
  for (const Edge& edge : profile.edges)
    text += "\t" + profile.layers[edge.from].name + " -- " + profile.layers[edge.to].name + "\n";
  return text;
}

}  // namespace weft::partition

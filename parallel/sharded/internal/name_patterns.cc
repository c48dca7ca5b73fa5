#include <weft/parallel/sharded/internal/name_patterns.h>

#include <fnmatch.h>

#include <algorithm>

namespace weft::sharded {

bool matches(const std::string& pattern, const std::string& name) {
  std::string path_pattern = pattern, path = name;  // of fnmatch(3), with dots as separators
  std::replace(path_pattern.begin(), path_pattern.end(), '.', '/');
  std::replace(path.begin(), path.end(), '.', '/');
  return fnmatch(path_pattern.c_str(), path.c_str(), FNM_PATHNAME) == 0;
}

bool matches_or_contains(const std::string& pattern, const std::string& name) {
  for (std::size_t end = name.find('.');; end = name.find('.', end + 1)) {
    if (matches(pattern, name.substr(0, end))) return true;
    if (end == std::string::npos) return false;
  }
}

const PrecisionOf* first_match(const std::vector<PrecisionOf>& entries, const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const PrecisionOf& each) {
    return matches_or_contains(each.pattern, name);
  });
  return found == entries.end() ? nullptr : &*found;
}

std::string to_text(const std::vector<PrecisionOf>& entries) {
  std::string text;
  for (const auto& [pattern, types, convert_inputs] : entries) {
    text += ", " + pattern + " in";
    for (const auto& type : {types.parameters, types.reduction, types.buffers})
      text += std::string(" ") + (type ? c10::toString(*type) : "its own type");
    if (!convert_inputs) text += " without conversion of inputs";
  }
  return text;
}

}  // namespace weft::sharded

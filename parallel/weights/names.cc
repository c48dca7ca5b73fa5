#include <weft/parallel/weights/names.h>

namespace weft::weights {

NameMap exact_names(std::map<std::string, std::string> names) {
  return [names = std::move(names)](const std::string& name) {
    const auto found = names.find(name);
    return found == names.end() ? name : found->second;
  };
}

NameMap prefixes(std::vector<std::pair<std::string, std::string>> prefixes) {
  return [prefixes = std::move(prefixes)](const std::string& name) {
    for (const auto& [from, to] : prefixes)
      if (name.starts_with(from)) return to + name.substr(from.size());
    return name;
  };
}

}  // namespace weft::weights

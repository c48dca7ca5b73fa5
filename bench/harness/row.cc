#include "bench/harness/row.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace weft::bench {

std::string to_json(const Row& row) {
  nlohmann::ordered_json object{{"bench", row.bench}, {"case", row.case_name}, {"peer", row.peer},
                                {"round", row.round}, {"pins", row.pins},      {"threads", row.threads}};
  for (const auto& [name, text] : row.notes) object[name] = text;
  for (const auto& [name, value] : row.figures) object[name] = value;
  if (!row.error.empty()) object["error"] = row.error;
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool higher_is_better(std::string_view figure) {
  return figure.ends_with("_per_s") || figure == "GBps" || figure == "share";
}

std::vector<std::string> in_order(std::vector<std::string> figures) {
  std::sort(figures.begin(), figures.end());
  std::stable_partition(figures.begin(), figures.end(),
                        [](const std::string& name) { return !higher_is_better(name); });
  return figures;
}

std::string leading_figure(const Figures& figures) {
  std::vector<std::string> names;
  for (const auto& [name, value] : figures) names.push_back(name);
  return names.empty() ? std::string() : in_order(std::move(names)).front();
}

std::string heading(const std::string& figure) {
  if (figure == "GBps") return "GB/s";
  std::string text = figure;
  for (const std::string unit : {"_per_s", "_per_call"})
    if (text.ends_with(unit))
      text = text.substr(0, text.size() - unit.size()) + "/" + unit.substr(sizeof "_per_" - 1);
  std::replace(text.begin(), text.end(), '_', ' ');
  return text;
}

std::string number(double value) {
  char text[32];
  const int digits = value == 0 ? 0 : static_cast<int>(std::floor(std::log10(std::fabs(value))));
  std::snprintf(text, sizeof text, "%.*f", std::clamp(2 - digits, 0, 4), value);
  return text;
}

}  // namespace weft::bench

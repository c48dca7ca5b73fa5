#include "bench/harness/row.h"

#include <nlohmann/json.hpp>

namespace weft::bench {

std::string to_json(const Row& row) {
  nlohmann::ordered_json object{{"bench", row.bench}, {"case", row.case_name}, {"peer", row.peer},
                                {"round", row.round}, {"pins", row.pins},      {"threads", row.threads}};
  for (const auto& [name, text] : row.notes) object[name] = text;
  for (const auto& [name, value] : row.figures) object[name] = value;
  if (!row.error.empty()) object["error"] = row.error;
  return object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

bool higher_is_better(std::string_view figure) { return figure.ends_with("_per_s") || figure == "GBps"; }

}  // namespace weft::bench

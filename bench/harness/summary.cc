#include "bench/harness/summary.h"

#include "bench/harness/statistics.h"

#include <algorithm>

namespace weft::bench {
namespace {

using Samples = std::map<std::string, std::vector<double>>;

const Row* find(const std::vector<Row>& rows, const std::string& case_name, const std::string& peer,
                int round) {
  const auto found = std::find_if(rows.begin(), rows.end(), [&](const Row& row) {
    return row.case_name == case_name && row.peer == peer && row.round == round;
  });
  return found == rows.end() ? nullptr : &*found;
}

Ratio condense(const std::string& figure, const std::vector<double>& ratios) {
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  return {median(ratios), higher_is_better(figure) ? *least : *most};
}

}  // namespace

std::vector<Entry> summarise(const std::vector<Row>& rows, const std::string& subject) {
  std::vector<Entry> entries;
  for (const Row& row : rows) {
    const bool known = std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
      return entry.case_name == row.case_name && entry.peer == row.peer;
    });
    if (!known)
      entries.push_back(
          {.case_name = row.case_name, .peer = row.peer, .medians = {}, .ratios = {}, .error = {}});
  }
  for (Entry& entry : entries) {
    Samples figures, ratios;
    for (const Row& row : rows) {
      if (row.case_name != entry.case_name || row.peer != entry.peer) continue;
      ++entry.rounds;
      if (!row.error.empty()) {
        entry.error = row.error;
        continue;
      }
      ++entry.measured;
      const Row* against = row.peer == subject ? nullptr : find(rows, row.case_name, subject, row.round);
      for (const auto& [name, value] : row.figures) {
        figures[name].push_back(value);
        if (against == nullptr || value == 0) continue;
        if (const auto own = against->figures.find(name); own != against->figures.end())
          ratios[name].push_back(own->second / value);
      }
    }
    for (const auto& [name, values] : figures) entry.medians[name] = median(values);
    for (const auto& [name, values] : ratios) entry.ratios.emplace(name, condense(name, values));
  }
  return entries;
}

}  // namespace weft::bench

#include "bench/harness/table.h"

#include <algorithm>
#include <set>

namespace weft::bench {
namespace {

using Line = std::vector<std::string>;

std::string render(const std::vector<Line>& lines, std::size_t text_columns) {
  std::vector<std::size_t> widths(lines.front().size());
  for (const Line& line : lines)
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  std::string out;
  for (const Line& line : lines) {
    std::string text;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      const std::string gap(widths[i] - line[i].size(), ' ');
      text += (i == 0 ? "" : "  ") + (i < text_columns ? line[i] + gap : gap + line[i]);
    }
    if (line.size() > widths.size()) text += "  " + line.back();  // a remark has no column
    text.erase(text.find_last_not_of(' ') + 1);
    out += text + '\n';
  }
  return out;
}

}  // namespace

std::string table(const std::vector<Entry>& entries, const std::string& subject) {
  std::set<std::string> names;
  for (const Entry& entry : entries)
    for (const auto& [name, value] : entry.medians) names.insert(name);
  const std::vector<std::string> figures = in_order({names.begin(), names.end()});

  Line first{"case", "peer"};
  for (const std::string& figure : figures) first.push_back(heading(figure));
  first.insert(first.end(), {subject + "/peer", "worst", "rounds"});
  std::vector<Line> lines{first};
  std::string last;
  for (const Entry& entry : entries) {
    Line line{entry.case_name == last ? "" : entry.case_name, entry.peer};
    last = entry.case_name;
    const Ratio* ratio = nullptr;
    for (const std::string& figure : figures) {
      const auto found = entry.medians.find(figure);
      line.push_back(found == entry.medians.end() ? "" : number(found->second));
      if (const auto r = entry.ratios.find(figure); ratio == nullptr && r != entry.ratios.end())
        ratio = &r->second;
    }
    line.push_back(ratio == nullptr ? "" : number(ratio->median));
    line.push_back(ratio == nullptr ? "" : number(ratio->worst));
    line.push_back(std::to_string(entry.measured) + "/" + std::to_string(entry.rounds));
    if (!entry.error.empty()) line.push_back("failed: " + entry.error);
    lines.push_back(line);
  }
  return render(lines, 2);
}

}  // namespace weft::bench

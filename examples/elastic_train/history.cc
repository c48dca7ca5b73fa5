#include "elastic_train/history.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <set>
#include <sstream>
#include <string_view>

#include "fashion_mnist/loss_curve.h"

namespace {

constexpr double width = 720, left = 70, right = 20, top = 40, plot = 220, bar = 18;
constexpr std::string_view style = R"(<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328 } .title { font-size: 14px; font-weight: 600 }
  .page { fill: #ffffff } .grid { stroke: #e3e7eb } .change { stroke: #d1a53c; stroke-dasharray: 2 3 }
  .loss { fill: none; stroke: #0969da; stroke-width: 1.5 } .bar { fill: #1a7f37 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .page { fill: #0d1117 } .grid { stroke: #2a3139 } .change { stroke: #8a6d1f }
    .loss { stroke: #58a6ff } .bar { fill: #3fb950 }
  }
</style>
)";

constexpr std::size_t columns = 72, max_notes = 4;
constexpr std::array<const char*, 8> levels{"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};

std::set<std::string> names_of(const std::vector<Row>& rows) {
  std::set<std::string> names;
  for (const Row& row : rows) names.insert(row.workers.begin(), row.workers.end());
  return names;
}

std::string words(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : " ") + name;
  return text;
}

bool has(const Row& row, const std::string& worker) {
  return std::find(row.workers.begin(), row.workers.end(), worker) != row.workers.end();
}

double highest_loss(const std::vector<Row>& rows) {
  double highest = 1e-9;
  for (const Row& row : rows) highest = std::max(highest, row.loss);
  return highest;
}

std::string svg_of(const std::vector<Row>& rows, const std::string& title) {
  const auto names = names_of(rows);
  const double bars = top + plot + 36, height = bars + bar * static_cast<double>(names.size()) + 16;
  const double steps = rows.empty() ? 1 : static_cast<double>(rows.back().step), highest = highest_loss(rows);
  const auto x = [&](double step) { return left + (width - left - right) * step / steps; };
  const auto y = [&](double loss) { return top + plot * (1 - loss / highest); };
  std::string svg;
  const auto out = std::back_inserter(svg);
  fmt::format_to(
      out,
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\">\n"
      "{2}<rect width=\"{0}\" height=\"{1}\" class=\"page\"/>\n"
      "<text x=\"{3}\" y=\"22\" class=\"title\">{4}</text>\n",
      width, height, style, left, title);
  for (int part = 0; part <= 4; ++part) {
    fmt::format_to(out,
                   "<path d=\"M{0} {1:.1f}H{2}\" class=\"grid\"/><text x=\"{3}\" y=\"{4:.1f}\" "
                   "text-anchor=\"end\">{5:.2f}</text>\n",
                   left, y(highest * part / 4), width - right, left - 6, y(highest * part / 4) + 4,
                   highest * part / 4);
    fmt::format_to(out, "<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{:.0f}</text>\n",
                   x(steps * part / 4), top + plot + 16, steps * part / 4);
  }
  double before = 0;
  std::uint64_t generation = 0;
  std::string losses;
  for (const Row& row : rows) {
    const auto step = static_cast<double>(row.step);
    if (generation != 0 && row.generation != generation)
      fmt::format_to(out, "\n<path d=\"M{:.1f} {}V{:.1f}\" class=\"change\"/>", x(before), top, height - 16);
    double bar_top = bars;
    for (const std::string& name : names) {
      if (has(row, name))
        fmt::format_to(out, "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" class=\"bar\"/>",
                       x(before), bar_top, x(step) - x(before) + 0.1, bar - 5);
      bar_top += bar;
    }
    losses += fmt::format("{:.1f},{:.1f} ", x(step), y(row.loss));
    generation = row.generation;
    before = step;
  }
  fmt::format_to(out, "\n<polyline class=\"loss\" points=\"{}\"/>\n", losses);
  double text = bars + 11;
  for (const std::string& name : names) {
    fmt::format_to(out, "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n", left - 6, text, name);
    text += bar;
  }
  return svg + "</svg>\n";
}

}  // namespace

std::string to_line(const Row& row) {
  return fmt::format("step {}  loss {:.4f}  generation {}  {}", row.step, row.loss, row.generation,
                     words(row.workers));
}

std::optional<Row> row_of(const std::string& line) {
  Row row;
  std::istringstream words(line);
  std::string step, loss, generation;
  if (!(words >> step >> row.step >> loss >> row.loss >> generation >> row.generation) || step != "step")
    return std::nullopt;
  for (std::string name; words >> name;) row.workers.push_back(std::move(name));
  return row;
}

void write_history(const std::vector<Row>& rows, const std::string& title, const std::string& folder) {
  const std::filesystem::path to = folder;
  std::filesystem::create_directories(to);
  std::string table = "step,loss,generation,workers\n";
  for (const Row& row : rows)
    table += fmt::format("{},{:.6f},{},{}\n", row.step, row.loss, row.generation, words(row.workers));
  write_file(to / "loss.csv", table);
  write_file(to / "membership.svg", svg_of(rows, title));
}

LivePicture::LivePicture(std::int64_t steps) : terminal_(::isatty(STDOUT_FILENO) == 1), steps_(steps) {}

void LivePicture::add(const Row& row) {
  // Steps that were lost are repeated: drops their earlier rows.
  while (!rows_.empty() && rows_.back().step >= row.step) rows_.pop_back();
  rows_.push_back(row);
  if (terminal_) return draw();
  fmt::print("{}\n", to_line(row));
  std::fflush(stdout);
}

void LivePicture::add_note(const std::string& note) {
  notes_.push_back(note);
  if (terminal_) return draw();
  fmt::print("{}\n", note);
  std::fflush(stdout);
}

void LivePicture::draw() {
  std::vector<std::string> lines;
  if (!rows_.empty()) {
    const Row& last = rows_.back();
    lines.push_back(fmt::format("step {} of {}   loss {:.4f}   generation {}: {} workers", last.step, steps_,
                                last.loss, last.generation, last.workers.size()));
    // The latest row of each column.
    std::vector<const Row*> shown(columns, nullptr);
    for (const Row& row : rows_)
      shown[std::min(columns - 1, static_cast<std::size_t>(
                                      (row.step - 1) * static_cast<std::int64_t>(columns) / steps_))] = &row;
    const auto line = [&](const std::string& name, const auto& cell) {
      std::string text = fmt::format("{:10}", name);
      const Row* known = nullptr;
      for (const Row* row : shown) {
        known = row != nullptr ? row : known;
        text += known == nullptr || (known == &last && row == nullptr) ? " " : cell(*known);
      }
      lines.push_back(std::move(text));
    };
    const double highest = highest_loss(rows_);
    line("loss", [&](const Row& row) {
      return std::string(levels[std::min<std::size_t>(7, static_cast<std::size_t>(8 * row.loss / highest))]);
    });
    for (const std::string& name : names_of(rows_))
      line(name, [&](const Row& row) { return std::string(has(row, name) ? "█" : " "); });
  }
  for (std::size_t i = notes_.size() - std::min(notes_.size(), max_notes); i < notes_.size(); ++i)
    lines.push_back(notes_[i]);
  if (drawn_ != 0) fmt::print("\033[{}A", drawn_);
  drawn_ = std::max(drawn_, lines.size());
  lines.resize(drawn_);
  for (const std::string& line : lines) fmt::print("{}\033[K\n", line);
  std::fflush(stdout);
}

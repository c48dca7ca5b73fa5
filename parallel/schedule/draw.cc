#include <weft/parallel/schedule/draw.h>

#include <weft/parallel/schedule/internal/refuse.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

namespace weft::schedule {
namespace {

constexpr double margin = 12, rank_label = 56, title_height = 22, axis_height = 22, legend_height = 26;

struct Kind {
  Op op;
  const char* style;  // class of its rectangles
  const char* label;
};
constexpr std::array<Kind, 6> kinds = {{{Op::forward, "f", "forward"},
                                        {Op::backward, "b", "backward"},
                                        {Op::input_gradient, "i", "input gradient"},
                                        {Op::weight_gradient, "w", "weight gradient"},
                                        {Op::recompute, "r", "recompute"},
                                        {Op::optimizer_step, "s", "optimizer step"}}};
constexpr Kind other = {Op::idle, "o", "other"};

constexpr const char* style = R"(<style>
  text { font: 11px system-ui, sans-serif; fill: #59636e } .title { font-size: 13px; font-weight: 600; fill: #1f2328 }
  .page { fill: #ffffff } .idle { fill: #f0f2f4 } .axis { stroke: #d0d7de } .message { stroke: #8c959f; stroke-width: 0.7 }
  .cell { font-size: 10px; fill: #1f2328 } rect.late { fill-opacity: 0.72 } rect { stroke-width: 0.6 }
  .f { fill: #9ecbff; stroke: #4a8fd6 } .b { fill: #9be0ac; stroke: #3f9d58 } .i { fill: #8fdccf; stroke: #2e9385 }
  .w { fill: #e3d27a; stroke: #a8922c } .r { fill: #e2b6e8; stroke: #a45fb0 } .s { fill: #c9c3f0; stroke: #6f63b8 }
  .o { fill: #f3a79c; stroke: #c2594a }
  @media (prefers-color-scheme: dark) {
    text { fill: #9198a1 } .title { fill: #e6edf3 } .page { fill: #0d1117 } .idle { fill: #1b2129 } .axis { stroke: #30363d }
  }
</style>
)";

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  std::string result = text;
  while (result.back() == '0') result.pop_back();
  if (result.back() == '.') result.pop_back();
  return result == "-0" ? "0" : result;
}

std::string escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '&')
      result += "&amp;";
    else if (c == '<')
      result += "&lt;";
    else if (c == '>')
      result += "&gt;";
    else
      result += c;
  }
  return result;
}

const Kind& kind_of(Op op) {
  const auto known =
      std::find_if(kinds.begin(), kinds.end(), [op](const Kind& kind) { return kind.op == op; });
  return known == kinds.end() ? other : *known;
}

// Returns the distance of ticks: 1, 2 or 5 times a power of ten, with at most ten ticks in `range`.
double tick_of(double range) {
  const double power = std::pow(10, std::floor(std::log10(range / 10)));
  for (const double factor : {1.0, 2.0, 5.0})
    if (range / (power * factor) <= 10) return power * factor;
  return power * 10;
}

// A pair as "0F4+7B3".
std::string cell_of(const Action& action) {
  std::string cell;
  for_each_part(action, [&](const Action& part) { cell += (cell.empty() ? "" : "+") + to_string(part); });
  return cell;
}

class Drawing {
 public:
  Drawing(const Schedule& schedule, const DrawOptions& options) : schedule_(schedule), options_(options) {}

  std::string draw(const std::vector<Panel>& panels) {
    double end = 0;
    for (const Panel& panel : panels) {
      check(panel.timeline);
      for (const std::vector<Span>& spans : panel.timeline.ranks)
        for (const Span& span : spans) end = std::max(end, span.finish);
    }
    end = end > 0 ? end : 1;
    left_ = margin + rank_label;
    per_second_ = (options_.width - left_ - margin) / end;
    double y = margin;
    for (const Panel& panel : panels) y = draw_panel(panel, end, y);
    y = draw_legend(y);
    const std::string size = "width=\"" + number(options_.width) + "\" height=\"" + number(y) + "\"";
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " + number(options_.width) + ' ' +
           number(y) + "\" " + size + ">\n" + style + "<rect " + size + " class=\"page\"/>\n" + body_ +
           "</svg>\n";
  }

 private:
  void check(const Timeline& timeline) const {
    if (timeline.ranks.size() != schedule_.ranks.size())
      refuse("svg", "a timeline of " + std::to_string(timeline.ranks.size()) + " ranks, expected " +
                        std::to_string(schedule_.ranks.size()));
    for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank)
      for (const Span& span : timeline.ranks[rank])
        if (const auto actions = schedule_.ranks[rank].size(); span.action >= actions)
          refuse("svg", "action " + std::to_string(span.action) + " of rank " + std::to_string(rank) +
                            ", expected a number below " + std::to_string(actions));
  }

  void rect(double x, double y, double width, double height, const std::string& kind,
            const std::string& inside = "") {
    body_ += "<rect x=\"" + number(x) + "\" y=\"" + number(y) + "\" width=\"" + number(width) +
             "\" height=\"" + number(height) + "\" class=\"" + kind + "\"" +
             (inside.empty() ? "/>" : ">" + inside + "</rect>");
  }
  void text(double x, double y, const std::string& words, const char* kind = "",
            const char* anchor = "start") {
    body_ += "<text x=\"" + number(x) + "\" y=\"" + number(y) + "\" text-anchor=\"" + anchor + "\"" +
             (*kind == 0 ? "" : std::string(" class=\"") + kind + "\"") + ">" + escaped(words) + "</text>";
  }
  void line(double x1, double y1, double x2, double y2, const char* kind) {
    body_ += "<line x1=\"" + number(x1) + "\" y1=\"" + number(y1) + "\" x2=\"" + number(x2) + "\" y2=\"" +
             number(y2) + "\" class=\"" + kind + "\"/>";
  }
  // The picture has a line for each rank, title, axis and legend.
  void end_line() { body_ += '\n'; }
  double x_of(double seconds) const { return left_ + seconds * per_second_; }

  double draw_panel(const Panel& panel, double end, double y) {
    text(margin, y + 14, panel.title, "title");
    end_line();
    const double top = y + title_height, row = options_.row_height;
    const double bottom = top + row * static_cast<double>(panel.timeline.ranks.size());
    for (std::size_t rank = 0; rank < panel.timeline.ranks.size(); ++rank) {
      const double at = top + row * static_cast<double>(rank);
      text(margin, at + row / 2 + 4, "rank " + std::to_string(rank));
      rect(left_, at + 1, x_of(end) - left_, row - 2, "idle");
      for (const Span& span : panel.timeline.ranks[rank])
        draw_span(schedule_.ranks[rank][span.action], rank, span, at + 1, row - 2);
      end_line();
    }
    if (options_.transfers)
      for (const Transfer& each : panel.timeline.transfers)
        line(x_of(each.start), top + row * (each.from + 0.5), x_of(each.finish), top + row * (each.to + 0.5),
             "message");
    const double tick = tick_of(end);
    for (double at = 0; at <= end * 1.0001; at += tick) {
      line(x_of(at), bottom, x_of(at), bottom + 4, "axis");
      text(x_of(at), bottom + 15, number(at), "", "middle");
    }
    end_line();
    return bottom + axis_height;
  }

  void draw_span(const Action& action, std::size_t rank, const Span& span, double y, double height) {
    if (span.finish <= span.start || action.op == Op::idle) return;
    const std::string about = "<title>" + escaped(to_string(action)) + ": " + number(span.start) + " to " +
                              number(span.finish) + "</title>";
    // The parts of a pair are drawn over each other, each in its share of the height.
    const double parts = action.op == Op::overlap ? static_cast<double>(action.parts.size()) : 1;
    double at = y;
    for_each_part(action, [&](const Action& part) {
      const Kind& kind = kind_of(part.op);
      used_[static_cast<std::size_t>(
          &kind == &other ? kinds.size() : static_cast<std::size_t>(&kind - kinds.data()))] = true;
      const bool late = is_computation(part.op) && part.stage != first_stage(rank);
      const double width = (span.finish - span.start) * per_second_;
      rect(x_of(span.start), at, width, height / parts, std::string(kind.style) + (late ? " late" : ""),
           about);
      const std::string label = part.microbatch < 0 ? "" : std::to_string(part.microbatch);
      if (width >= 6.5 * static_cast<double>(label.size()) && !label.empty() && height / parts >= 10)
        text(x_of(span.start) + width / 2, at + height / parts / 2 + 3.5, label, "cell", "middle");
      at += height / parts;
    });
  }

  int first_stage(std::size_t rank) const {
    for (int stage = 0; stage < schedule_.stages(); ++stage)
      for (const int replica : schedule_.placement[static_cast<std::size_t>(stage)])
        if (replica == static_cast<int>(rank)) return stage;
    return -1;
  }

  double draw_legend(double y) {
    double x = left_;
    const auto entry = [&](const Kind& kind) {
      rect(x, y + 4, 14, 14, kind.style);
      text(x + 20, y + 15, kind.label);
      x += 38 + 6.0 * static_cast<double>(std::string(kind.label).size());
    };
    for (std::size_t i = 0; i < kinds.size(); ++i)
      if (used_[i]) entry(kinds[i]);
    if (used_[kinds.size()]) entry(other);
    end_line();
    return y + legend_height;
  }

  const Schedule& schedule_;
  const DrawOptions& options_;
  double left_ = 0, per_second_ = 0;
  std::array<bool, kinds.size() + 1> used_{};
  std::string body_;
};

}  // namespace

std::string svg(const Schedule& schedule, const std::vector<Panel>& panels, const DrawOptions& options) {
  return Drawing(schedule, options).draw(panels);
}

std::string table(const Schedule& schedule, const Timeline& timeline) {
  if (timeline.ranks.size() != schedule.ranks.size())
    refuse("table", std::to_string(timeline.ranks.size()) + " ranks in the timeline, expected " +
                        std::to_string(schedule.ranks.size()));
  double shortest = std::numeric_limits<double>::infinity();
  for (const std::vector<Span>& spans : timeline.ranks)
    for (const Span& span : spans)
      if (span.finish > span.start) shortest = std::min(shortest, span.finish - span.start);
  std::vector<std::vector<std::string>> rows;
  std::vector<std::size_t> widths;
  for (std::size_t rank = 0; rank < timeline.ranks.size(); ++rank) {
    std::vector<std::string>& row = rows.emplace_back();
    for (const Span& span : timeline.ranks[rank]) {
      if (span.finish <= span.start) continue;
      const auto column = static_cast<std::size_t>(std::lround(span.start / shortest));
      const auto next = static_cast<std::size_t>(std::lround(span.finish / shortest));
      if (row.size() < column) row.resize(column);
      row.push_back(cell_of(schedule.ranks[rank].at(span.action)));
      while (row.size() < next) row.push_back("..");
    }
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (std::size_t rank = 0; rank < rows.size(); ++rank) {
    std::string line = "rank " + std::to_string(rank) + " |";
    for (std::size_t i = 0; i < rows[rank].size(); ++i) {
      const std::string& cell = rows[rank][i];
      line += ' ' + cell + std::string(widths[i] - cell.size(), ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + '\n';
  }
  return text;
}

}  // namespace weft::schedule

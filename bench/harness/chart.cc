#include "bench/harness/chart.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <span>
#include <string_view>

namespace weft::bench {
namespace {

// Pixels. Columns from left to right: peers' names, the plot, figures, ratios.
constexpr double width = 860, plot_left = 130, plot_right = 590, figures_right = 668, ratios_right = 730,
                 worst_right = 800;
constexpr double top = 62, row_height = 18, panel_head = 30, panel_foot = 26;
constexpr double narrowest_scale = 8;       // the greatest value of the scale divided by the least
constexpr std::size_t longest_reason = 90;  // characters

// Almost all readers can distinguish blue and orange.
constexpr std::string_view style = R"(<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 16px; font-weight: 600 } .case { font-weight: 600 } .small { font-size: 10px; fill: #59636e }
  .page { fill: #ffffff } .grid { stroke: #e3e7eb } .subject { fill: #0969da; font-weight: 600 }
  .here { stroke: #0969da; stroke-width: 1.5 } .dot { fill: #59636e }
  .ahead { stroke: #54a0ef; stroke-width: 5 } .behind { stroke: #e08a2c; stroke-width: 5 }
  @media (prefers-color-scheme: dark) {
    text { fill: #e6edf3 } .small { fill: #9198a1 } .page { fill: #0d1117 } .grid { stroke: #2a3139 }
    .subject { fill: #58a6ff } .here { stroke: #58a6ff } .dot { fill: #b1bac4 }
    .ahead { stroke: #2f6cb5 } .behind { stroke: #b3691b }
  }
</style>
)";

std::string escape(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '"') {
      out += "&quot;";
    } else {
      out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;  // XML has no other control characters
    }
  }
  return out;
}

// Shortens the text, but does not cut a UTF-8 character in two.
std::string shorten(const std::string& text) {
  if (text.size() <= longest_reason) return text;
  std::size_t end = longest_reason;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + "...";
}

std::string coordinate(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", value);
  return text;
}

class Drawing {
 public:
  void text(double x, double y, std::string_view anchor, std::string_view kind, const std::string& words) {
    body_ += "<text x=\"" + coordinate(x) + "\" y=\"" + coordinate(y) + "\" text-anchor=\"" +
             std::string(anchor) + "\" class=\"" + std::string(kind) + "\">" + escape(words) + "</text>\n";
  }
  void line(double x1, double y1, double x2, double y2, std::string_view kind) {
    body_ += "<line x1=\"" + coordinate(x1) + "\" y1=\"" + coordinate(y1) + "\" x2=\"" + coordinate(x2) +
             "\" y2=\"" + coordinate(y2) + "\" class=\"" + std::string(kind) + "\"/>\n";
  }
  void dot(double x, double y, double radius, std::string_view kind) {
    body_ += "<circle cx=\"" + coordinate(x) + "\" cy=\"" + coordinate(y) + "\" r=\"" + coordinate(radius) +
             "\" class=\"" + std::string(kind) + "\"/>\n";
  }
  std::string finish(double height) const {
    const std::string size = "width=\"" + coordinate(width) + "\" height=\"" + coordinate(height) + "\"";
    return "<svg xmlns=\"http://www.w3.org/2000/svg\" " + size + " viewBox=\"0 0 " + coordinate(width) + " " +
           coordinate(height) + "\">\n" + std::string(style) + "<rect " + size + " class=\"page\"/>\n" +
           body_ + "</svg>\n";
  }

 private:
  std::string body_;
};

// 0: the entry has no figure that can be drawn.
double value_of(const Entry& entry, const std::string& figure) {
  const auto found = entry.medians.find(figure);
  return found == entry.medians.end() ? 0 : std::max(0.0, found->second);
}

class Panel {
 public:
  // `entries` of one case; they outlive the panel.
  Panel(std::span<const Entry> entries, const std::string& subject) : entries_(entries) {
    const auto own = std::find_if(entries.begin(), entries.end(),
                                  [&](const Entry& entry) { return entry.peer == subject; });
    if (own != entries.end()) {
      subject_ = &*own;
      figure_ = leading_figure(own->medians);
    }
    for (const Entry& entry : entries)
      if (figure_.empty()) figure_ = leading_figure(entry.medians);
    double low = 0, high = 0;
    for (const Entry& entry : entries) {
      const double value = value_of(entry, figure_);
      if (value == 0) continue;
      low = low == 0 ? value : std::min(low, value);
      high = std::max(high, value);
    }
    if (low == 0) return;
    // No scale is narrower than narrowest_scale, so that nearly equal values are drawn close together.
    const double widen = std::sqrt(std::max(1.0, narrowest_scale * low / high));
    ticks_ = log_ticks(low / widen, high * widen);
  }

  double height() const {
    return panel_head + row_height * static_cast<double>(entries_.size()) + panel_foot;
  }

  void draw(Drawing& drawing, double y) const {
    drawing.text(plot_left, y + 16, "start", "case", entries_.front().case_name);
    if (!figure_.empty())
      drawing.text(
          plot_right, y + 16, "end", "small",
          heading(figure_) + (higher_is_better(figure_) ? ", higher is better" : ", lower is better"));
    const double first = y + panel_head, last = y + height() - panel_foot;
    for (const double tick : ticks_) {
      drawing.line(x_of(tick), first - 4, x_of(tick), last, "grid");
      drawing.text(x_of(tick), last + 12, "middle", "small", mark(tick));
    }
    const double own = subject_ == nullptr ? 0 : value_of(*subject_, figure_);
    double row = first + row_height / 2;
    for (const Entry& entry : entries_) {
      draw_row(drawing, row, entry, own);
      row += row_height;
    }
    if (own != 0) drawing.line(x_of(own), first - 4, x_of(own), last, "here");
  }

 private:
  static std::string mark(double tick) {
    char text[32];
    std::snprintf(text, sizeof text, "%g", tick);
    return text;
  }
  double x_of(double value) const {
    const double from = std::log(ticks_.front()), to = std::log(ticks_.back());
    return plot_left + (std::log(value) - from) / (to - from) * (plot_right - plot_left);
  }

  void draw_row(Drawing& drawing, double y, const Entry& entry, double own) const {
    const bool subject = &entry == subject_;
    const double value = value_of(entry, figure_), baseline = y + 4;
    drawing.text(plot_left - 10, baseline, "end", subject ? "subject" : "peer", entry.peer);
    if (value == 0 && !entry.error.empty())
      return drawing.text(plot_left + 6, baseline, "start", "small", shorten("failed: " + entry.error));
    if (const auto ratio = entry.ratios.find(figure_); ratio != entry.ratios.end()) {
      const double median = ratio->second.median;
      const bool ahead = higher_is_better(figure_) ? median >= 1 : median <= 1;
      if (own != 0 && value != 0) drawing.line(x_of(own), y, x_of(value), y, ahead ? "ahead" : "behind");
      drawing.text(ratios_right, baseline, "end", "peer", number(median));
      drawing.text(worst_right, baseline, "end", "small", number(ratio->second.worst));
    }
    if (value != 0) drawing.dot(x_of(value), y, subject ? 5.5 : 4, subject ? "subject" : "dot");
    if (entry.medians.contains(figure_))
      drawing.text(figures_right, baseline, "end", subject ? "subject" : "peer", number(value));
  }

  std::span<const Entry> entries_;
  const Entry* subject_ = nullptr;
  std::string figure_;
  std::vector<double> ticks_;  // empty: nothing to draw
};

}  // namespace

std::vector<double> log_ticks(double low, double high) {
  const auto power = [](int exponent) { return std::pow(10.0, exponent); };
  const int first = static_cast<int>(std::floor(std::log10(low))),
            last = static_cast<int>(std::ceil(std::log10(high)));
  std::vector<double> ticks;
  for (int exponent = first - 1; exponent <= last; ++exponent)
    for (const double step : {1.0, 2.0, 5.0}) ticks.push_back(step * power(exponent));
  ticks.push_back(power(last + 1));
  const auto trim = [&](std::vector<double> all) {
    const auto from = std::upper_bound(all.begin(), all.end(), low) - 1;
    const auto to = std::lower_bound(from, all.end(), high);
    // If all values are equal to one tick, adds the ticks before and after it, so that the axis has a length.
    return from == to ? std::vector<double>(from - 1, to + 2) : std::vector<double>(from, to + 1);
  };
  const std::vector<double> fine = trim(ticks);
  if (fine.size() <= 8) return fine;
  ticks.clear();
  for (int exponent = first - 1; exponent <= last + 1; ++exponent) ticks.push_back(power(exponent));
  return trim(ticks);
}

std::string chart(const std::vector<Entry>& entries, const std::string& subject, const std::string& title) {
  Drawing drawing;
  drawing.text(plot_left, 26, "start", "title", title);
  drawing.text(plot_left, 44, "start", "small",
               "medians; a bar is the ratio to " + subject + ": blue where " + subject +
                   " is ahead, orange where behind");
  drawing.text(ratios_right, 44, "end", "small", subject + "/peer");
  drawing.text(worst_right, 44, "end", "small", "worst");
  double y = top;
  for (auto from = entries.begin(); from != entries.end();) {
    const auto to = std::find_if(from, entries.end(),
                                 [&](const Entry& entry) { return entry.case_name != from->case_name; });
    const Panel panel({from, to}, subject);
    panel.draw(drawing, y);
    y += panel.height();
    from = to;
  }
  return drawing.finish(y);
}

}  // namespace weft::bench
